#!/usr/bin/env python3
"""Refuses a crate in Cargo.lock that a pinned list of RustSec advisories names (.ci/advisories.tsv). Needs no network.

Vulnerable and unsound crates are an error, unmaintained ones are only named. Says how old the list is; age is no error.
`--test` checks the comparison of versions.
"""
import datetime
import operator
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parent
OLD_DAYS = 180
COMPARISONS = {"<": operator.lt, ">=": operator.ge, "=": operator.eq}


def version(text: str) -> tuple:
    """A version as it compares: a pre-release is before its release, and what is built does not count."""
    release, _, pre = text.partition("+")[0].partition("-")
    return (*map(int, release.split(".")), pre == "")


def is_affected(found: str, ranges: str) -> bool:
    def holds(bound: str) -> bool:
        sign, limit = re.fullmatch(r"(<|>=|=)([0-9].*)", bound).groups()
        return COMPARISONS[sign](version(found), version(limit))

    return any(all(map(holds, one.split(","))) for one in ranges.split("|"))


def test() -> None:
    for found, ranges, expected in [
        ("1.13.0", "<1.13.1", True),
        ("1.13.1", "<1.13.1", False),
        ("1.9.0", "<1.13.1", True),
        ("0.15.0", ">=0.15.0,<0.15.1", True),
        ("0.14.9", ">=0.15.0,<0.15.1", False),
        ("1.0.5", "<0.4.8|>=1.0.0,<1.1.0", True),
        ("0.5.0", "<0.4.8|>=1.0.0,<1.1.0", False),
        ("2.0.0-pre.0", "<2.0.0", True),
        ("2.1.2+zstd.1.5.7", "<2.1.2", False),
    ]:
        assert is_affected(found, ranges) == expected, (found, ranges)


def main() -> int:
    test()
    if sys.argv[1:] == ["--test"]:
        return 0
    lines = (ROOT / "advisories.tsv").read_text().splitlines()
    pinned = next(line.split("\t")[1] for line in lines if line.startswith("# pinned\t"))
    advisories = [line.split("\t") for line in lines if line and not line.startswith("#")]
    packages = tomllib.loads((ROOT.parent / "Cargo.lock").read_text())["package"]
    failed = False
    for id, crate, ranges, kind, subject in advisories:
        for package in packages:
            if package["name"] == crate and is_affected(package["version"], ranges):
                failed |= kind != "unmaintained"
                print(f"{crate} {package['version']}: {id}, {kind}: {subject}")
    days = (datetime.date.today() - datetime.date.fromisoformat(pinned)).days
    print(f"{len(advisories)} advisories, a partial list pinned {days} days ago ({pinned})")
    if days > OLD_DAYS:
        print(f"warning: the list is older than {OLD_DAYS} days: renew .ci/advisories.tsv", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
