"""Counts type names that are hard to find.

    python3 .ci/names.py            the shares
    python3 .ci/names.py --list     and the names

A type is a `struct`, `enum`, `union`, `trait` or `type` of this workspace, in tests too. Its name
- collides, if another type has it. `Error`, `Options`, `Config` and `Args` may repeat: one per crate or module.
- is one word, if it has one capital: `Page`, not `SegmentPage`.
- is a participle, if its last word is one: `Sought`, `OffsetCommitted`.
"""

import collections
import re
import subprocess
import sys

MAY_REPEAT = {"Error", "Options", "Config", "Args"}
IRREGULAR = set(
    """Begun Bought Bound Broken Brought Built Caught Chosen Done Driven Drawn Fallen Fed Felt Found Forgotten Frozen
    Given Gone Grown Heard Held Hidden Hung Kept Known Laid Led Left Lent Lost Made Meant Met Paid Put Read Risen Said Seen
    Sent Shaken Shown Shut Slept Sold Sought Spent Spoken Spun Stolen Stood Stuck Sworn Taken Taught Thought Thrown Told
    Torn Understood Unknown Unread Woken Won Worn Written""".split()
)
# Nouns that look like participles. A bound is one of TIME.md's words.
NOUNS = set(
    """Bed Bound Breed Creed Deed Feed Found Hundred Need Read Red Seed Shed Speed Thread Weed
    Building Ceiling Finding Reading Recording Encoding Framing Heading Listing Logging Mapping Padding Ping Pricing Ring Routing Running Scheduling
    Setting Spring String Testing Thing Timing Wing""".split()
) - {"Found", "Read", "Running"}

DEFINITION = re.compile(
    r"^(?P<indent>[ \t]*)(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?P<kind>struct|enum|union|trait|type)\s+(?P<name>[A-Z]\w*)",
    re.MULTILINE,
)
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*|[A-Z]+")


def types():
    """Every type: its name, its file and its line."""
    files = subprocess.run(["git", "ls-files", "*.rs"], check=True, capture_output=True, text=True)
    for path in files.stdout.split():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for found in DEFINITION.finditer(text):
            # An indented `type` belongs to a trait or its implementation.
            if found["kind"] == "type" and found["indent"]:
                continue
            line = text.count("\n", 0, found.start("name")) + 1
            yield found["name"], path, line


def is_participle(name):
    last = WORD.findall(name)[-1]
    if last in IRREGULAR:
        return True
    return last not in NOUNS and re.search(r"[a-z](ed|ing)$", last) is not None


def main():
    found = list(types())
    counts = collections.Counter(name for name, *_ in found)
    groups = {
        "colliding": [t for t in found if counts[t[0]] > 1 and t[0] not in MAY_REPEAT],
        "one word": [t for t in found if len(WORD.findall(t[0])) == 1],
        "participles": [t for t in found if is_participle(t[0])],
    }
    print(f"{len(found)} types")
    for what, members in groups.items():
        print(f"{what:12} {len(members):5} {100 * len(members) / len(found):5.1f} %")
        if "--list" in sys.argv:
            for name, path, line in sorted(members):
                print(f"    {path}:{line}: {name}")


main()
