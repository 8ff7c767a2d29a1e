#!/usr/bin/env python3
"""Plots what `freezeframe-bench storage` or `time` found: plot.py RESULTS.json DIRECTORY writes one SVG an experiment.

The points are medians of rounds, and the bars reach from the lowest round to the highest, unless a plot says
otherwise. What the paper on FFFS (Song et al., "The Freeze-Frame File System", SoCC 2016) published is drawn in grey:
on other machines, over a network of 10 Gbit/s; it says where its authors stood, not what this machine could do.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter  # noqa: E402

# Text stays text, and the same results give the same bytes.
matplotlib.rcParams.update({
    "svg.fonttype": "none",
    "svg.hashsalt": "freezeframe",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8,
})
PAPER = {"color": "0.45", "linestyle": "--", "linewidth": 1}


class Experiment:
    """The findings of one experiment, by series."""

    def __init__(self, found):
        self.series = {}
        for finding in found["findings"]:
            self.series.setdefault(finding["series"], []).append(finding)

    def line(self, axes, name, figure, label=None, **style):
        """One series of one figure, with bars from its lowest round to its highest."""
        points = [it for it in self.series.get(name, []) if figure in it["figures"]]
        if not points:
            return
        spread = [it["figures"][figure] for it in points]
        at = [it["at"] for it in points]
        median = [it["median"] for it in spread]
        below = [it["median"] - it["low"] for it in spread]
        above = [it["high"] - it["median"] for it in spread]
        axes.errorbar(at, median, [below, above], marker="o", capsize=2, linewidth=1.3, label=label or name, **style)

    def lines(self, axes, figure, names=None, **style):
        for name in names or self.series:
            self.line(axes, name, figure, **style)

    def bars(self, axes, figure, names=None, confidence=False):
        """Groups of bars, a group for each place on the axis."""
        names = names or list(self.series)
        labels = [it["label"] for it in self.series[names[0]]]
        width = 0.8 / len(names)
        for nth, name in enumerate(names):
            spread = [it["figures"][figure] for it in self.series[name]]
            at = [place + (nth - (len(names) - 1) / 2) * width for place in range(len(spread))]
            if confidence:
                height = [it["mean"] for it in spread]
                error = [it["confidence95"] or 0 for it in spread]
            else:
                height = [it["median"] for it in spread]
                error = [
                    [it["median"] - it["low"] for it in spread],
                    [it["high"] - it["median"] for it in spread],
                ]
            axes.bar(at, height, width * 0.92, yerr=error, capsize=2, label=name, error_kw={"linewidth": 0.8})
        axes.set_xticks(range(len(labels)), labels)
        axes.grid(axis="x", visible=False)


def bytes_axis(axes, label):
    def text(value, _):
        for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size:
                return f"{value / size:g} {unit}"
        return f"{value:g} B"

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(text))
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel(label)


def rate_axis(axes, label="MB/s"):
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def figure(title, columns):
    drawing, axes = plt.subplots(1, columns, figsize=(4.6 * columns, 3.7), layout="constrained", squeeze=False)
    drawing.suptitle(title, fontsize=10)
    return drawing, axes[0]


def legend(drawing):
    """One below all axes, each name once."""
    names = {}
    for axes in drawing.axes:
        for handle, name in zip(*axes.get_legend_handles_labels()):
            names.setdefault(name, handle)
    columns = 2 if len(drawing.axes) == 1 else 4
    drawing.legend(names.values(), names.keys(), loc="outside lower center", ncols=columns)


def f28(found):
    drawing, (answered, stable) = figure("Appending from one client, by size (the paper's figure 7a)", 2)
    for axes, key, title in (
        (answered, "mb_per_s", "until the last is answered"),
        (stable, "mb_per_s_with_the_last_sync", "until all is on stable storage"),
    ):
        found.lines(axes, key)
        axes.plot([256 << 10], [900], "s", color="0.3", label="paper: FFFS, 10 GbE")
        axes.plot([256 << 10], [393], "^", color="0.6", label="paper: HDFS, 10 GbE")
        axes.set_title(title, fontsize=9)
        bytes_axis(axes, "size of an append")
        rate_axis(axes)
    return drawing


def sustained(found):
    drawing, (axes,) = figure("Appending more bytes than the page cache takes ahead of the disk", 1)
    found.bars(axes, "mb_per_s")
    axes.set_xlabel("size of an append")
    rate_axis(axes, "MB/s until the last is answered")
    return drawing


def f29(found):
    drawing, three = figure("Reading 100 logs at a cut, first and second pass (the paper's figure 7a)", 3)
    for axes, where, beside, title in (
        (three[0], "memory", "memcpy", "from memory"),
        (three[1], "unsorted", "unsorted, O_DIRECT reads of its files", "from disk, as the journal has it"),
        (three[2], "sorted", "sorted, O_DIRECT reads of its files", "from disk, sorted by log"),
    ):
        for name, colour in ((f"{where}, first pass", "C0"), (f"{where}, second pass", "C1")):
            found.line(axes, name, "mb_per_s", name.split(", ")[1], color=colour)
        label = beside.split(", ")[-1]
        found.line(axes, beside, "mb_per_s", label, color="C2" if where == "memory" else "C3")
        axes.axhline(1164, label="paper, figure 7a: second pass, at its network's limit", **PAPER)
        bytes_axis(axes, "size of an entry")
        rate_axis(axes)
        axes.set_title(title, fontsize=9)
    return drawing


def f32(found):
    drawing, (axes,) = figure("No disk, page cache, synced; 5 runs, mean and 95 % confidence (the paper's figure 9)", 1)
    drawing.set_size_inches(6, 3.5)
    found.bars(axes, "mb_per_s_with_the_last_sync", confidence=True)
    axes.axhline(900, label="paper: 256 KiB, off and on alike (10 GbE)", **PAPER)
    axes.set_xlabel("size of an append")
    rate_axis(axes)
    return drawing


def f33(found):
    drawing, (axes,) = figure("The disk by size of a flush, and group commit (the paper's figure 10)", 1)
    drawing.set_size_inches(6, 3.5)
    found.lines(axes, "mb_per_s")
    axes.axhline(450, label="paper: its SSD, reached from 2 MB on", **PAPER)
    bytes_axis(axes, "size of a flush (store: bytes that wait for one)")
    rate_axis(axes)
    return drawing


def group(found):
    drawing, (axes,) = figure("Durable group commit: 1000 appends in flight", 1)
    found.bars(axes, "mb_per_s")
    axes.set_xlabel("size of an append")
    rate_axis(axes)
    return drawing


def f14(found):
    drawing, (axes,) = figure("The cost of an append, by entries in its log", 1)
    found.line(axes, "append", "cpu_ns_an_append", "CPU time")
    found.line(axes, "append", "ns_an_append", "wall time")
    axes.set_xscale("log")
    axes.set_xlabel("entries in the log")
    rate_axis(axes, "ns an append of 16 B")
    # One slow round must not hide whether the line is flat.
    medians = [it["figures"]["ns_an_append"]["median"] for it in found.series["append"]]
    axes.set_ylim(top=3 * max(medians))
    return drawing


def start(found):
    drawing, (time, memory) = figure("Opening a history of batches of 128 B in 1000 logs", 2)
    found.lines(time, "ms_to_answer_of_every_log")
    time.axhline(1000, color="tab:red", linestyle=":", label="to reach: 1 s")
    time.set_yscale("log")
    time.set_ylabel("ms until every log answered")
    found.lines(memory, "rss_mib_after_answering")
    memory.set_ylabel("MiB of resident memory for it")
    for axes in (time, memory):
        axes.set_xscale("log")
        axes.set_xlabel("entries")
    return drawing


def logs(found):
    drawing, (time, disk) = figure("Opening logs that were written to once, as files make them", 2)
    found.lines(time, "open_ms")
    time.axhline(1000, color="tab:red", linestyle=":", label="to reach: 1 s")
    time.set_yscale("log")
    time.set_ylabel("ms to open")
    found.lines(disk, "index_bytes_a_log")
    disk.set_ylim(bottom=0)
    disk.set_ylabel("bytes of indexes a log")
    for axes in (time, disk):
        axes.set_xscale("log")
        axes.set_xlabel("logs")
    return drawing


def seek(found):
    drawing, both = figure("Finding a random moment in a log", 2)
    for axes, key, title in ((both[0], "p50_ns", "median"), (both[1], "p99_ns", "99th percentile")):
        found.lines(axes, key)
        axes.set_xscale("log")
        axes.set_xlabel("entries in the log")
        rate_axis(axes, "ns")
        axes.set_title(title, fontsize=9)
    return drawing


def f34(found):
    drawing, (axes,) = figure("One file of 64 MiB, read whole at 500 moments (the paper's figure 11)", 1)
    drawing.set_size_inches(6, 3.5)
    found.lines(axes, "mb_per_s")
    axes.axhline(1100, label="paper: 1.1 GB/s, its network's limit", **PAPER)
    axes.set_xlabel("moment: after so many random writes of 32 KiB")
    rate_axis(axes)
    return drawing


def f35(found):
    drawing, both = figure("What history costs beyond its bytes (the paper's figure 12)", 2)
    for axes, key, title in (
        (both[0], "memory_overhead_percent", "memory"),
        (both[1], "disk_overhead_percent", "disk"),
    ):
        found.lines(axes, key)
        bytes_axis(axes, "size of a write")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylabel("% of the bytes written")
        axes.set_title(title, fontsize=9)
    # A write takes whole pages there, and each page a pointer.
    sizes = [100, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10]
    for page, pointers in ((512, 5.0), (1 << 10, 2.8), (4 << 10, 0.1)):
        percent = [pointers + 100 * max(0, page / size - 1) for size in sizes]
        style = {**PAPER, "linestyle": {512: ":", 1024: "--", 4096: "-."}[page]}
        both[0].plot(sizes, percent, label=f"the paper's, pages of {page} B", **style)
    for axes in both:
        axes.set_ylim(bottom=0)
    return drawing


def cut(found):
    drawing, (axes,) = figure("A cut across all partitions, inside of the engine", 1)
    drawing.set_size_inches(6, 3.5)
    found.lines(axes, "p50_ms")
    axes.axhline(5, color="tab:red", linestyle=":", label="to reach at 10,000: 5 ms")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("partitions")
    axes.set_ylabel("ms")
    return drawing


def seek_user(found):
    drawing, both = figure("Finding a moment in one long history", 2)
    drawing.set_size_inches(13, 4)
    for axes, key, title in ((both[0], "p50_ns", "median"), (both[1], "p99_ns", "99th percentile")):
        found.lines(axes, key)
        axes.axhline(10_000, color="tab:red", linestyle=":", label="to reach: 10 µs")
        axes.set_xscale("log")
        axes.set_xlabel("batches in the history")
        axes.set_yscale("log")
        axes.set_ylabel("ns")
        axes.set_title(title, fontsize=9)
    return drawing


def f37(found):
    drawing, (axes,) = figure("Readers at as many moments at once, beside as many of the present", 1)
    drawing.set_size_inches(6, 3.5)
    found.lines(axes, "mb_per_s")
    rate_axis(axes, "MB/s, all readers together")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("readers")
    return drawing


PLOTS = [f28, sustained, f29, f32, f33, group, f14, start, logs, seek, f34, f35, cut, seek_user, f37]


def main(results, directory):
    experiments = json.loads(Path(results).read_text())["experiments"]
    for plot in PLOTS:
        if plot.__name__ in experiments:
            drawing = plot(Experiment(experiments[plot.__name__]))
            legend(drawing)
            path = Path(directory) / f"{plot.__name__}.svg"
            drawing.savefig(path, metadata={"Date": None})
            plt.close(drawing)
            print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py RESULTS.json DIRECTORY")
    main(sys.argv[1], sys.argv[2])
