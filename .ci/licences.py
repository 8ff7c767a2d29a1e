#!/usr/bin/env python3
"""Refuses a dependency whose licence is not on the list. Reads `cargo metadata`; fetches nothing else."""
import json
import re
import subprocess
import sys

ALLOWED = {
    "Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0", "Unlicense",
    "0BSD", "CC0-1.0", "MIT-0", "BSL-1.0", "Apache-2.0 WITH LLVM-exception",
}


def allowed(expression: str) -> bool:
    """Whether some choice that the SPDX expression offers needs only allowed licences."""
    text = expression.replace("/", " OR ")
    tokens = re.findall(r"\(|\)|[^()\s]+", text)
    words, out = [], []

    def flush():
        if words:
            out.append(str(" ".join(words) in ALLOWED))
            words.clear()

    for token in tokens:
        if token in "()" or token in ("AND", "OR"):
            flush()
            out.append({"AND": "and", "OR": "or"}.get(token, token))
        else:
            words.append(token)
    flush()
    return bool(eval(" ".join(out)))  # only True, False, and, or, parentheses


def main() -> int:
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked"], check=True, capture_output=True
        ).stdout
    )
    bad = [
        f"{package['name']} {package['version']}: {package.get('license')}"
        for package in metadata["packages"]
        if not package.get("license") or not allowed(package["license"])
    ]
    for line in bad:
        print("licence is not on the list:", line)
    print(f"{len(metadata['packages'])} packages, {len(bad)} with a licence that is not on the list")
    return 1 if bad else 0


sys.exit(main())
