"""cut.svg: one cut across three partitions, a znode and a committed offset."""

import base64
from dataclasses import dataclass

from service import Service, stamp
from svg import BLUE, GREEN, INK, LIGHT_BLUE, MUTED, ORANGE, RULE, WHITE, Svg

TOPIC, ZNODE, GROUP = "orders", "/price", "billing"


@dataclass
class Event:
    """A change, with its stamp."""

    stamp: int
    row: str
    label: str
    is_in_cut: bool


@dataclass
class Past:
    """What the server answered: the events in their order, the cut, and what each row holds in it."""

    events: list
    at: int
    rows: dict


def write_history(service):
    """Returns the moment of the cut, and one after everything."""
    def produce(partition, key, value):
        service.run("produce", TOPIC, "-K:", "--partition", str(partition), lines=f"{key}:{value}\n")

    def commit():
        service.run("groups", "seek", GROUP, "--at", "now", "--topic", TOPIC)

    service.run("topics", "create", TOPIC, "--partitions", "3")
    produce(0, 17, "placed")
    service.run("zk", "create", ZNODE, "10")
    produce(2, 18, "placed")
    produce(1, 19, "placed")
    commit()
    service.run("zk", "set", ZNODE, "12")
    produce(0, 17, "paid")
    at = service.moment()
    produce(1, 19, "cancelled")
    service.run("zk", "set", ZNODE, "9")
    commit()
    produce(2, 18, "paid")
    produce(0, 17, "shipped")
    return at, service.moment()


def committed(service, moment):
    """The offset that was committed in partition 0 as of a moment, and the stamp of the commit."""
    (group,) = service.objects("groups", "describe", GROUP, "--at", moment, "--json")
    partition = next(it for it in group["partitions"] if it["partition"] == 0)
    return partition["committed"], partition["committed_stamp"]


def read_history(service):
    at, finish = write_history(service)
    (cut,) = service.objects("cut", "--at", at, "--json")
    ends = {it["partition"]: it["end"] for it in cut["partitions"]}
    events, rows = [], {}
    for partition, end in ends.items():
        rows[f"{TOPIC}/{partition}"] = f"offsets 0 to {end - 1}" if end > 1 else "offset 0"
    for record in service.objects("cat", TOPIC, "--format", "jsonl"):
        partition, label = record["partition"], f"{record['key']} {record['value']}"
        is_in_cut = record["offset"] < ends[partition]
        events.append(Event(stamp(record["stamp"]), f"{TOPIC}/{partition}", label, is_in_cut))
    for transaction in service.objects("zk", "log", ZNODE, "--json"):
        (change,) = transaction["changes"]
        value = base64.b64decode(change["data"]).decode()
        events.append(Event(stamp(transaction["stamp"]), ZNODE, value, transaction["zxid"] <= cut["zxid"]))
    rows[ZNODE] = service.run("zk", "get", ZNODE, "--at", at).strip()
    rows[GROUP] = str(committed(service, at)[0])
    for moment in (at, finish):
        offset, commit = committed(service, moment)
        events.append(Event(stamp(commit), GROUP, str(offset), moment == at))
    events.sort(key=lambda event: event.stamp)
    check(service, cut, events)
    return Past(events, stamp(at), rows)


def check(service, cut, events):
    """The answers agree with each other, and the cut is still what it was."""
    for event in events:
        assert event.is_in_cut == (event.stamp < stamp(cut["at"])), event
    (again,) = service.objects("cut", "--at", cut["at"], "--json")
    assert again["hash"] == cut["hash"] and again["partitions"] == cut["partitions"] and cut["closed"], again


def draw(past, path):
    names = [
        (f"{TOPIC}/0", "partition"), (f"{TOPIC}/1", "partition"), (f"{TOPIC}/2", "partition"),
        (ZNODE, "znode"), (GROUP, "group: committed in orders/0"),
    ]
    left, right, top, pitch = 236, 716, 128, 62
    bottom = top + pitch * len(names)
    drawing = Svg(900, bottom + 74, "One cut across three partitions, a znode and a committed offset")
    drawing.text(28, 38, "One moment cuts across partitions, znodes and offsets", 20, bold=True)
    words = "Every change has a stamp of one clock. A moment is a bound on stamps, so it cuts all rows at one place."
    drawing.text(28, 62, words, 14, MUTED)
    # An empty place before the first event, and one on each side of the line, so that no label crosses it.
    inside = sum(event.is_in_cut for event in past.events)
    step = (right - left) / (len(past.events) + 3)
    places = [left + step * (nth + (1 if event.is_in_cut else 2.7)) for nth, event in enumerate(past.events)]
    line = left + step * (inside + 1.2)
    drawing.rect(left, top - 18, line - left, bottom - top + 6, fill=LIGHT_BLUE)
    drawing.text(744, top - 26, "in the cut", 13, BLUE, bold=True)
    for nth, (name, kind) in enumerate(names):
        y = top + pitch * nth + 22
        drawing.text(28, y - 2, name, 15, bold=True, mono=True)
        drawing.text(28, y + 15, kind, 12, MUTED)
        drawing.line(left, y, right, y, RULE, 2)
        drawing.text(744, y + 5, past.rows[name], 14, BLUE, mono=not past.rows[name].startswith("offset"))
        for x, event in zip(places, past.events):
            if event.row == name:
                fill = BLUE if event.is_in_cut else WHITE
                drawing.circle(x, y, 7, fill, BLUE if event.is_in_cut else MUTED)
                drawing.text(x, y - 14, event.label, 12, INK if event.is_in_cut else MUTED, "middle")
    drawing.line(line, top - 18, line, bottom - 6, ORANGE, 2.5)
    drawing.text(line, top - 26, "the moment", 13, ORANGE, "middle", bold=True)
    drawing.arrow([(left, bottom + 10), (right, bottom + 10)])
    drawing.text(left, bottom + 30, "by stamp; the order is that of a real run, the distances are not", 12, MUTED)
    promise = "Asked for again, after everything to the right was written, the cut has the same ends and the same hash."
    drawing.text(28, bottom + 58, promise, 13, GREEN)
    drawing.write(path)


def make(binary, directory):
    with Service(binary) as service:
        past = read_history(service)
    draw(past, directory / "cut.svg")
