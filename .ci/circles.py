"""Prints what depends on each other in a circle: modules of a crate, and the directories at the top that hold crates.

    python3 .ci/circles.py            the circles
    python3 .ci/circles.py --edges    and which file names which module, which crate which crate
    python3 .ci/circles.py --check    fails if directories form a circle

A module is a file or a directory at the top of a crate's `src`, with everything under it. It depends on another one if
one of its files names it: by a path from the crate's root, or by a name that the root re-exports. Tests do not count.

A directory at the top depends on another one if a crate in it depends on a crate in that one, in more than its tests.
"""

import pathlib
import re
import subprocess
import sys
import tomllib


def without_tests(text):
    """The code without comments, and without the module of tests at its foot."""
    text = re.sub(r"//[^\n]*", "", text)
    tests = re.search(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod \w+\s*\{", text)
    return text[: tests.start()] if tests else text


def first_names(group):
    """The first name of each path in a `use` group: `a::b, c` gives a and c."""
    depth, path, names = 0, "", []
    for char in group + ",":
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            break
        if char == "," and depth == 0:
            names += re.findall(r"^\s*(\w+)", path)
            path = ""
        else:
            path += char
    return names + re.findall(r"^\s*(\w+)", path)


def root_names(text, depth):
    """Names that a file at that depth of modules takes from the crate's root."""
    root = r"(?<!\w)(?:crate|" + "::".join(["super"] * depth) + r")::"
    names = re.findall(root + r"(\w+)", text)
    for group in re.finditer(root + r"\{", text):
        names += first_names(text[group.end() :])
    return names


def edges(source):
    """For each module, the modules that it names, and the files that do."""
    root = next(path for path in (source / "lib.rs", source / "main.rs") if path.exists())
    text = without_tests(root.read_text())
    modules = set(re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?mod (\w+);", text, re.MULTILINE))
    exported = {}
    for module, names in re.findall(r"pub(?:\([^)]*\))? use (?:crate::)?(\w+)::([^;]+);", text):
        exported.update(dict.fromkeys(re.findall(r"(\w+)\s*(?:,|\}|$)", names), module))
    graph = {module: {} for module in modules}
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] not in modules or any(part.startswith("tests") for part in parts):
            continue
        depth = len(parts) - (parts[-1] == "mod")
        for name in root_names(without_tests(path.read_text()), depth):
            target = name if name in modules else exported.get(name)
            if target in modules and target != parts[0]:
                graph[parts[0]].setdefault(target, set()).add("/".join(parts))
    return graph


def reachable(graph, start):
    seen, waiting = set(), [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def circles(graph):
    """Sets of modules that all depend on each other, the largest first."""
    reach = {module: reachable(graph, module) for module in graph}
    found = {
        frozenset(other for other in reach[module] if module in reach[other]) | {module} for module in graph
    }
    return sorted((sorted(circle) for circle in found if len(circle) > 1), key=len, reverse=True)


def directory_edges(manifests):
    """For each directory at the top, the ones that it depends on, and the crates that do."""
    crates = {}
    for manifest in manifests:
        crate = tomllib.loads(manifest.read_text())
        if "package" in crate:
            dependencies = {**crate.get("dependencies", {}), **crate.get("build-dependencies", {})}
            crates[crate["package"]["name"]] = (manifest.parts[0], dependencies)
    graph = {top: {} for top, _ in crates.values()}
    for name, (top, dependencies) in crates.items():
        for dependency in dependencies:
            target, _ = crates.get(dependency, (top, None))
            if target != top:
                graph[top].setdefault(target, set()).add(f"{name} ({dependency})")
    return graph


def print_circles(place, unit, graph):
    for circle in circles(graph):
        print(f"{place}: {len(circle)} of {len(graph)} {unit}: {' '.join(circle)}")
        for module in circle if "--edges" in sys.argv else []:
            for target, users in sorted(graph[module].items()):
                if target in circle:
                    print(f"    {module} -> {target}: {' '.join(sorted(users))}")


def main():
    manifests = subprocess.check_output(["git", "ls-files", "*Cargo.toml"], text=True).split()
    manifests = [pathlib.Path(manifest) for manifest in manifests]
    directories = directory_edges(manifests)
    print_circles(".", "directories", directories)
    if "--check" in sys.argv:
        sys.exit("directories depend on each other" if circles(directories) else 0)
    for source in (manifest.parent / "src" for manifest in manifests):
        if source.is_dir():
            print_circles(source.parent, "modules", edges(source))


main()
