#!/usr/bin/env python3
"""Prints a bill of materials of the binary `freezeframe`: CycloneDX 1.5 in JSON, from `cargo metadata`.

It has the crates that are built into the binary on Linux, and not those of tests and benches.
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

TARGET = "x86_64-unknown-linux-gnu"
PROGRAM = "cli"


def main() -> None:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    lock_text = pathlib.Path("Cargo.lock").read_bytes()
    lock = tomllib.loads(lock_text.decode())["package"]
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock}

    def dependencies(id: str) -> list:
        kinds = ((dep["pkg"], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in nodes[id]["deps"])
        return sorted({found for found, kinds in kinds if kinds & {None, "build"}})

    root = next(id for id, package in packages.items() if package["name"] == PROGRAM)
    reached, waiting = set(), [root]
    while waiting:
        if (id := waiting.pop()) not in reached:
            reached.add(id)
            waiting.extend(dependencies(id))

    def url(id: str) -> str:
        return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    def component(id: str) -> dict:
        package = packages[id]
        one = {"type": "library", "bom-ref": url(id), "name": package["name"], "version": package["version"], "purl": url(id)}
        if package["license"]:
            one["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := checksums.get((package["name"], package["version"])):
            one["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return one

    program = component(root) | {"type": "application", "name": "freezeframe"}
    rest = sorted(reached - {root}, key=url)
    # The same lock file gives the same document.
    serial = uuid.UUID(bytes=hashlib.sha256(lock_text).digest()[:16], version=4)
    graph = [{"ref": url(id), "dependsOn": [url(on) for on in dependencies(id)]} for id in [root, *rest]]
    json.dump({"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
               "metadata": {"component": program}, "components": [component(id) for id in rest],
               "dependencies": graph}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
