"""Starts the real binary with a data directory of its own, and asks it."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path


class Service:
    """A server on free ports of 127.0.0.1, stopped and removed at the end."""

    def __init__(self, binary):
        self.binary = Path(binary)
        self.directory = Path(tempfile.mkdtemp(prefix="pictures-"))
        command = [binary, "serve", "--data-dir", self.directory / "data"]
        command += ["--kafka", "127.0.0.1:0", "--zookeeper", "127.0.0.1:0", "--http", "off"]
        with open(self.directory / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        ready = self.process.stdout.readline()
        address = re.match(r"ready kafka=(\S+) zookeeper=(\S+)", ready)
        if not address:
            self.stop()
            raise SystemExit(f"{binary} serve: expected a line that begins with 'ready', got {ready!r}")
        self.kafka, self.zookeeper = address.groups()

    def environment(self):
        server = {"FREEZEFRAME_BOOTSTRAP": self.kafka, "FREEZEFRAME_ZOOKEEPER": self.zookeeper}
        path = f"{self.binary.absolute().parent}:{os.environ['PATH']}"
        return {**os.environ, **server, "PATH": path, "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def run(self, *arguments, lines=""):
        """What a command prints on standard output."""
        done = subprocess.run(
            [self.binary, *arguments], input=lines, env=self.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"freezeframe {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def objects(self, *arguments):
        return [json.loads(line) for line in self.run(*arguments).splitlines()]

    def moment(self):
        return self.run("moment").strip()

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.directory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def stamp(text):
    """The number behind a moment such as sh01a22440a5d40001."""
    if not text.startswith("sh"):
        raise SystemExit(f"expected a whole stamp (sh and 16 hex digits), got {text!r}")
    return int(text[2:], 16)
