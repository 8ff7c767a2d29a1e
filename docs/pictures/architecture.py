"""architecture.svg: doors, engine, storage and disk, with the crates of each.

The script fails if an arrow or a place of a crate contradicts the Cargo.toml files, if a crate of the workspace is
missing, or if a server's data directory has other entries than those that are drawn.
"""

import tomllib
from pathlib import Path

from service import Service
from svg import BLUE, GREEN, INK, LIGHT_BLUE, MUTED, ORANGE, PANEL, RULE, WHITE, Svg

ROOT = Path(__file__).resolve().parents[2]
DOORS = ["compat-kafka", "history-api", "fileview", "compat-zk"]
WINGS = ["engine-groups", "engine-files", "engine-security", "engine-znodes"]
DRAWN = {*DOORS, *WINGS, "engine", "engine-core", "storage", "hlc"}
# Crates that stand in the text: those of the program, and those that several layers use.
PROGRAM = ["broker", "client", "cli"]
SHARED = ["kafka-records", "record-columns", "zk-wire", "history-documents", "user-time", "admission", "kafka-acls",
          "scram", "tls", "bearer-tokens", "rdma"]
# The parts of compat-kafka, in the text too.
PARTS = ["kafka-guard", "kafka-connections", "kafka-sasl", "kafka-topics", "kafka-fetch-sessions", "kafka-groups",
         "kafka-share-groups", "kafka-transactions", "kafka-client-metrics", "kafka-format", "kafka-errors"]
ARROWS = [
    ("compat-kafka", "history-api"), ("history-api", "fileview"), ("compat-kafka", "engine"), ("history-api", "engine"),
    ("fileview", "engine"), ("compat-zk", "engine-znodes"), *(("engine", wing) for wing in WINGS),
    *((wing, "engine-core") for wing in WINGS), ("engine-core", "storage"), ("engine-core", "hlc"), ("storage", "hlc"),
]
# Dependencies that the text names and no arrow shows.
SAID = [*(("broker", door) for door in DOORS), ("cli", "broker"), ("cli", "client")]
DISK = [
    ("journal", "segments, indexes, proofs, the manifest, the bound"),
    ("catalog", "soft: groups, offsets, names"),
]


def dependencies():
    """Each crate of the workspace outside of tests/, with the crates of the workspace that it uses."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    manifests = {}
    for member in workspace["members"]:
        for path in sorted(ROOT.glob(f"{member}/Cargo.toml")):
            if not path.is_relative_to(ROOT / "tests"):
                manifest = tomllib.loads(path.read_text())
                manifests[manifest["package"]["name"]] = manifest
    return {name: set(it.get("dependencies", {})) & set(manifests) for name, it in manifests.items()}


def check(uses, entries):
    crates = DRAWN | {*PROGRAM, *SHARED, *PARTS}
    if crates != set(uses):
        raise SystemExit(f"the picture and the workspace differ in {sorted(crates ^ set(uses))}")
    for crate, used in ARROWS + SAID:
        if used not in uses[crate]:
            raise SystemExit(f"{crate} does not use {used}")
    missing = {name for name, _ in DISK} - entries
    if missing:
        raise SystemExit(f"a data directory has no {sorted(missing)}, it has {sorted(entries)}")


def box(drawing, x, y, width, height, name, lines=(), fill=WHITE, stroke=MUTED):
    """A crate, and in words what it does."""
    drawing.rect(x, y, width, height, fill, stroke, 5, line=1.2)
    drawing.text(x + width / 2, y + 21, name, 13.5, INK, "middle", bold=True, mono=True)
    for nth, line in enumerate(lines):
        drawing.text(x + width / 2, y + 39 + 16 * nth, line, 12, MUTED, "middle")


def layer(drawing, y, height):
    drawing.rect(24, y, 852, height, PANEL, RULE, 8)


def draw(path):
    drawing = Svg(900, 898, "The architecture: doors, engine, storage, disk")
    drawing.text(28, 38, "The architecture in one picture", 20, bold=True)
    words = "The boxes are crates. An arrow goes from a crate to one that it uses; the most telling ones are drawn."
    drawing.text(28, 62, words, 14, MUTED)
    columns = [(40, 190), (254, 190), (468, 190), (690, 170)]
    centres = [x + width / 2 for x, width in columns]
    layer(drawing, 116, 124)
    drawing.text(40, 229, "Doors", 14, BLUE, bold=True)
    drawing.text(186, 229, "opened by broker, with TLS", 12, MUTED)
    for x, name in zip(centres, ["Kafka clients, our own", "HTTP clients", "programs, by a mount", "ZooKeeper clients"]):
        drawing.text(x, 96, name, 13, INK, "middle")
        drawing.arrow([(x, 102), (x, 138)], ORANGE)
    words = [
        ["requests, coordinators,", "records by TCP or RDMA"], ["cuts, differences,", "the past of groups"],
        ["one tree of files,", "answers to the kernel"], ["requests, watches,", "sessions"],
    ]
    for (x, width), name, lines in zip(columns, DOORS, words):
        box(drawing, x, 138, width, 68, name, lines)
    drawing.arrow([(230, 172), (254, 172)])
    drawing.arrow([(444, 172), (468, 172)])

    layer(drawing, 258, 290)
    drawing.text(40, 537, "Engine", 14, BLUE, bold=True)
    drawing.text(100, 537, "every read of the past goes through engine-core; it knows no wire format", 12, MUTED)
    for x in centres[:3]:
        drawing.arrow([(x + 40, 206), (x + 40, 280)])
    drawing.arrow([(centres[3] + 30, 206), (centres[3] + 30, 358)])
    box(drawing, 40, 280, 618, 46, "engine", ["opens the spine and its wings together; what cuts across them"])
    words = [
        ["committed offsets,", "snapshots of groups"], ["files with overwrites,", "the tree under them"],
        ["users, access control,", "quotas"], ["znodes and sessions,", "as transactions"],
    ]
    for (x, width), centre, name, lines in zip(columns, centres, WINGS, words):
        box(drawing, x, 358, width, 68, name, lines, LIGHT_BLUE)
        if name != WINGS[-1]:
            drawing.arrow([(centre, 326), (centre, 358)])
        drawing.arrow([(centre, 426), (centre, 452)])
    drawing.arrow([(658, 303), (735, 303), (735, 358)])
    lines = [
        "the spine: topics, appends, producers, cuts, seeks, pins, retention, compaction",
        "the frontier: a moment at or below it is final",
    ]
    box(drawing, 40, 452, 820, 66, "engine-core", lines, LIGHT_BLUE)

    layer(drawing, 566, 114)
    drawing.text(860, 669, "Storage", 14, BLUE, "end", bold=True)
    drawing.arrow([(600, 518), (600, 588)])
    drawing.arrow([(775, 518), (775, 588)])
    lines = ["logs of bytes over one journal: one writer, one sync a group;", "recovery, sorting, merging, proofs"]
    box(drawing, 40, 588, 580, 62, "storage", lines)
    box(drawing, 690, 588, 170, 62, "hlc", ["the clock, stamps, cuts;", "no I/O, no threads"])
    drawing.arrow([(620, 619), (690, 619)])

    layer(drawing, 698, 74)
    drawing.text(860, 761, "Disk", 14, BLUE, "end", bold=True)
    for x, width, (name, lines) in zip((40, 440), (360, 260), DISK):
        drawing.arrow([(x + 120, 650), (x + 120, 712)], GREEN)
        drawing.rect(x, 712, width, 48, WHITE, GREEN, 5, "5 3", 1.2)
        drawing.text(x + width / 2, 731, f"{name}/", 13.5, INK, "middle", bold=True, mono=True)
        drawing.text(x + width / 2, 749, lines, 12, MUTED, "middle")

    notes = [
        "cli is the one binary. Its serve starts broker; its other commands use client, which enters by the same doors.",
        f"Used by several layers: {', '.join(SHARED[:7])},",
        f"{', '.join(SHARED[7:])}.",
        f"compat-kafka is made of more crates: {', '.join(PARTS[:5])},",
        f"{', '.join(PARTS[5:])}.",
    ]
    for nth, note in enumerate(notes):
        drawing.text(28, 798 + 20 * nth, note, 13, MUTED)
    drawing.write(path)


def make(binary, directory):
    with Service(binary) as service:
        entries = {it.name for it in (service.directory / "data").iterdir()}
    check(dependencies(), entries)
    draw(directory / "architecture.svg")
