"""beside-kafka.svg: how many times better or worse than Apache Kafka, from the tables of docs/bench/README.md."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from svg import BLUE, INK, MUTED, ORANGE, RULE, Svg

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "README.md"


@dataclass
class Comparison:
    """A row of a table. `table` and `row` are how they begin; `row` may name a row before, with > between."""

    table: str
    row: str
    name: str
    unit: str
    more_is_better: bool = False


WARM = "**Beside warm Kafka"
FIRST = "**Beside Apache Kafka 4.3.1, in one run**"
TRANSACTIONS = "**Transactions beside Apache Kafka"
GROUPS = "**Groups of the consumer protocol"
TLS = "**TLS beside Apache Kafka"

COMPARISONS = [
    Comparison(TRANSACTIONS, "8 producers, 20 partitions", "Transactions of 8 producers to 20 partitions", "a second", True),
    Comparison(TLS, "broker CPU s/GB", "Consume over TLS, from memory", "CPU s/GB"),
    Comparison(WARM, "produce 1 KiB, 512 MiB a round, beside Kafka > the same: settled CPU s/GB", "Produce batches of 1 MB",
               "CPU s/GB"),
    Comparison(WARM, "produce 1 KiB, 512 MiB a round, beside Kafka", "Produce batches of 1 MB", "MB/s", True),
    Comparison(WARM, "consume 1 KiB, 512 MiB, from memory > the same: CPU s/GB", "Consume, from memory", "CPU s/GB"),
    Comparison(GROUPS, "`groups --members 1000 ", "1,000 members join a group", "s until all have shares"),
    Comparison(FIRST, "produce 1 KiB, acks=all, batches of 16 KiB", "Produce batches of 16 KiB", "CPU s/GB"),
    Comparison(FIRST, "1,000 records/s of 100 B", "1,000 records/s, end to end", "ms at p99"),
    Comparison(FIRST, "consume 1 KiB from the start > the same: MB/s", "Consume old data, from the disk", "MB/s", True),
    Comparison(GROUPS, "`groups --members 10000 ", "10,000 members join 10 groups", "s until all have shares"),
]


def table(text, begins):
    """The paragraph above a table, and its rows as lists of cells."""
    paragraph, found = text.split(f"\n{begins}", 1)[1].split("\n\n", 1)
    lines = found.split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return begins + paragraph, rows


def numbers(comparison, text):
    """What the table has for Freezeframe and for Kafka."""
    _, rows = table(text, comparison.table)
    for begins in comparison.row.split(" > "):
        places = [nth for nth, row in enumerate(rows) if row[0].startswith(begins)]
        if not places:
            raise SystemExit(f"{RESULTS.name}: no row below {comparison.table!r} begins with {begins!r}")
        row, rows = rows[places[0]], rows[places[0] + 1 :]

    def value(cell):
        # The first of several: until answered, before settled.
        return float(re.match(r"[\d.]+", cell.strip("* "))[0])

    return value(row[1]), value(row[2])


def date(text, begins):
    return re.search(r"20\d\d-\d\d-\d\d", table(text, begins)[0])[0]


def draw(text, path):
    pitch, top = 42, 116
    middle, right = 528, 690
    bottom = top + pitch * len(COMPARISONS)
    drawing = Svg(900, bottom + 92, "Freezeframe beside Apache Kafka: how many times better, or worse")
    drawing.text(28, 38, "Beside Apache Kafka 4.3.1: how many times better, or worse", 20, bold=True)
    drawing.text(28, 62, "One node with two cores, both in turn in one run, clients on the same cores; medians.", 14, MUTED)
    # A doubling is as wide on both sides.
    doubling = (right - middle) / math.log2(6)

    def x(factor):
        return middle + doubling * math.log2(factor)

    for factor, label in ((1 / 2, "2 times worse"), (1, "even"), (2, "2"), (4, "4 times better")):
        drawing.line(x(factor), top - 10, x(factor), bottom - 8, MUTED if factor == 1 else RULE, 1.5 if factor == 1 else 1)
        shift = {1 / 2: -24, 4: 12}.get(factor, 0)
        drawing.text(x(factor) + shift, top - 18, label, 12, MUTED, "middle")
    drawing.text(724, top - 18, "Freezeframe against Kafka", 12, MUTED)
    for nth, comparison in enumerate(COMPARISONS):
        y = top + pitch * nth
        ours, theirs = numbers(comparison, text)
        factor = ours / theirs if comparison.more_is_better else theirs / ours
        colour = BLUE if factor >= 1 else ORANGE
        begin, end = sorted((middle, x(factor)))
        drawing.rect(begin, y, end - begin, 20, fill=colour)
        times = f"{max(factor, 1 / factor):.1f}"
        if factor >= 1:
            drawing.text(end + 6, y + 15, times, 13, colour, bold=True)
        else:
            drawing.text(begin - 6, y + 15, times, 13, colour, "end", bold=True)
        drawing.text(28, y + 9, comparison.name, 14)
        better = "more is better" if comparison.more_is_better else "less is better"
        drawing.text(28, y + 25, f"{comparison.unit}; {better}", 11.5, MUTED)
        drawing.text(752, y + 15, f"{ours:g}", 14, INK, "end", bold=True)
        drawing.text(762, y + 15, f"against {theirs:g}", 14, MUTED)
    days = sorted({date(text, begins) for begins in (FIRST, WARM, TRANSACTIONS, GROUPS, TLS)})
    notes = [
        "Produce and consume: both answer when the page cache has the data. "
        "Old data: Kafka's is in the page cache, ours comes from the disk.",
        "Transactions and groups: ours is on stable storage when it is answered, Kafka's is in the page cache.",
        f"Measured from {days[0]} to {days[-1]}. Conditions and commands of each: docs/bench/README.md.",
    ]
    for nth, note in enumerate(notes):
        drawing.text(28, bottom + 26 + 20 * nth, note, 12, MUTED)
    drawing.write(path)


def make(_, directory):
    draw(RESULTS.read_text(encoding="utf-8"), directory / "beside-kafka.svg")
