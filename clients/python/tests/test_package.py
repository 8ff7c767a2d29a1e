"""The wheel, in an environment of its own, and the README's lines in it."""

from __future__ import annotations

import re
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY, RealServer, Topics

import freezeframe as ff

PACKAGE = REPOSITORY / "clients/python"
THREE_LINES = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```\n", re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(directory), str(PACKAGE)]
    subprocess.run(build, check=True)
    [built] = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel, and nothing else."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    python = directory / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    assert str(directory) in _run(python, "import freezeframe; print(freezeframe.__file__)")
    return python


def test_the_wheel_has_the_package_its_types_and_its_licence(wheel: Path) -> None:
    assert wheel.name == f"freezeframe-{ff.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"freezeframe-{ff.__version__}.dist-info/METADATA").decode()
    sources = {f"freezeframe/{path.name}" for path in (PACKAGE / "src/freezeframe").iterdir() if path.is_file()}
    assert "freezeframe/py.typed" in sources and sources <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (PACKAGE / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()
    # Without extras it needs nothing.
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert required and all("extra ==" in requirement for requirement in required), required


def test_the_version_is_that_of_the_server() -> None:
    workspace = (REPOSITORY / "Cargo.toml").read_text()
    versions = re.findall(r'^version = "(.*)"$', workspace, re.MULTILINE)
    assert versions == [ff.__version__]


def test_the_three_lines_of_the_readme_print_what_it_says(python: Path, real: RealServer, topics: Topics) -> None:
    topics.create("orders")
    for number, (key, value) in enumerate([("17", "placed"), ("18", "placed"), ("17", "paid")]):
        topics.produce("orders", [(key, value)], timestamp=1_795_874_220_000 + number * 60_000)
    then = real.cli("moment").strip()
    topics.produce("orders", [("17", "cancelled")])
    found = THREE_LINES.search((PACKAGE / "README.md").read_text())
    assert found is not None
    lines, expected = found.groups()
    # The server of the test is elsewhere, and began a minute ago.
    lines = lines.replace("http://127.0.0.1:8080", real.url).replace("yesterday 14:00", then)
    assert real.url in lines and then in lines and len(lines.splitlines()) == 3
    # The extras are those of the tests' own environment, which saves their download.
    extras = f"import sys; sys.path += {site.getsitepackages()}\n"
    assert _run(python, extras + lines) == expected
    assert (REPOSITORY / "docs/PYTHON.md").read_text().count(expected) == 1


def test_what_an_extra_would_bring_is_named_where_it_is_missing(python: Path, real: RealServer, topics: Topics) -> None:
    topics.create("without-extras")
    lines = f"""
import freezeframe as ff
with ff.connect("{real.url}") as server:
    topic = server.topic("without-extras")
    print(list(topic.records()), topic.keys())
    for read in (topic.to_arrow, topic.to_pandas):
        try:
            read()
        except ImportError as problem:
            print(problem)
"""
    assert _run(python, lines) == (
        "[] {}\nthis needs pyarrow: pip install 'freezeframe[arrow]'\nthis needs pandas: pip install 'freezeframe[pandas]'\n"
    )


def _run(python: Path, lines: str) -> str:
    done = subprocess.run([str(python), "-I", "-c", lines], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
