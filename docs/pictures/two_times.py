"""two-times.svg: records by system time and user time, and what a moment of both selects."""

from service import Service, stamp
from svg import BLUE, GREEN, INK, LIGHT_BLUE, MUTED, ORANGE, WHITE, Svg

TOPIC = "readings"
DAY = "2026-11-21T"
# User times in the order of acceptance. The moment of system time lies between the two.
BEFORE = ["09:00", "09:05", "09:10", "09:02", "09:15", "09:20"]
AFTER = ["09:08", "09:25", "09:12", "09:30"]
BOUND = "09:17"


def read(service):
    """The records in order of acceptance, the system time, and the offsets of two answers."""
    service.run("topics", "create", TOPIC, "--partitions", "1")

    def produce(times):
        for time in times:
            service.run("produce", TOPIC, "--timestamp", f"{DAY}{time}:00Z", lines=f"{time}\n")

    produce(BEFORE)
    known = service.moment()
    produce(AFTER)
    records = service.objects("cat", TOPIC, "--format", "jsonl")
    assert [it["value"] for it in records] == BEFORE + AFTER, records
    bound = f"u{DAY}{BOUND}:00Z"

    def offsets(moment):
        return {it["offset"] for it in service.objects("cat", f"{TOPIC}@{moment}", "--format", "jsonl")}

    then, now = offsets(f"{bound}@{known}"), offsets(bound)
    # The rectangle that is drawn is the answer that came.
    for it in records:
        is_below = it["value"] < BOUND
        assert (it["offset"] in then) == (is_below and stamp(it["stamp"]) < stamp(known)), it
        assert (it["offset"] in now) == is_below, it
    return records, stamp(known), then, now


def minutes(time):
    hours, rest = time.split(":")
    return (int(hours) - 9) * 60 + int(rest)


def draw(records, known, then, now, path):
    left, right, top, bottom = 96, 560, 92, 452
    drawing = Svg(900, 520, "Records by system time and user time")
    drawing.text(28, 38, "Two times: when it was accepted, and when it happened", 20, bold=True)
    drawing.text(28, 62, "Each dot is a record of a real run. Late records lie below the others.", 14, MUTED)
    step = (right - left) / len(records)
    scale = (bottom - top - 12) / 34

    def y(time):
        return bottom - 12 - minutes(time) * scale

    before = sum(stamp(it["stamp"]) < known for it in records)
    line = left + step * before
    drawing.rect(left, y(BOUND), line - left, bottom - y(BOUND), fill=LIGHT_BLUE)
    for time in ("09:00", "09:10", "09:20", "09:30"):
        drawing.line(left, y(time), right, y(time))
        drawing.text(left - 10, y(time) + 5, time, 13, MUTED, "end")
    drawing.line(left, top, left, bottom, MUTED)
    drawing.arrow([(left, bottom), (right + 14, bottom)])
    drawing.arrow([(left, bottom), (left, top - 10)])
    drawing.text(left + 10, top - 2, "user time: when it happened", 13, MUTED)
    drawing.text(right, bottom + 44, "system time: when it was accepted (order, not to scale)", 13, MUTED, "end")
    drawing.line(left, y(BOUND), right, y(BOUND), ORANGE, 2, "6 4")
    drawing.text(right + 8, y(BOUND) + 5, "u", 16, ORANGE, bold=True, mono=True)
    drawing.line(line, top, line, bottom, ORANGE, 2, "6 4")
    drawing.text(line, bottom + 20, "s", 16, ORANGE, "middle", bold=True, mono=True)
    newest = ""
    for nth, record in enumerate(records):
        x, time, offset = left + step * (nth + 0.5), record["value"], record["offset"]
        if offset in then:
            drawing.circle(x, y(time), 8, BLUE, BLUE)
        elif offset in now:
            drawing.circle(x, y(time), 8, WHITE, GREEN, 3)
        else:
            drawing.circle(x, y(time), 8, WHITE, MUTED, 1.5)
        if time < newest:
            drawing.text(x + 13, y(time) + 5, "late", 12, MUTED)
        newest = max(newest, time)
    legend(drawing, 600, 150, records, then, now)
    drawing.write(path)


def legend(drawing, x, y, records, then, now):
    def times(offsets):
        return [it["value"] for it in records if it["offset"] in offsets]

    entries = [
        (BLUE, BLUE, f"{TOPIC}@u…@s…", "happened before u, accepted before s:",
         f"{len(then)} records, whenever it is asked for"),
        (WHITE, GREEN, f"{TOPIC}@u…", f"asked for at the end has {len(now - then)} more:",
         "they happened before u, and came late"),
        (WHITE, MUTED, None, f"The other {len(records) - len(now)} records happened", "at u or later: in neither answer"),
    ]
    for fill, stroke, name, first, second in entries:
        drawing.circle(x, y - 5, 8, fill, stroke, 3 if stroke == GREEN else 1.5)
        if name:
            drawing.text(x + 20, y, name, 15, INK, bold=True, mono=True)
            y += 20
        drawing.text(x + 20, y, first, 13, MUTED)
        drawing.text(x + 20, y + 18, second, 13, MUTED)
        y += 62
    drawing.text(x - 8, y, "Both bounds are exclusive.", 13, MUTED)


def make(binary, directory):
    with Service(binary) as service:
        records, known, then, now = read(service)
    draw(records, known, then, now, directory / "two-times.svg")
