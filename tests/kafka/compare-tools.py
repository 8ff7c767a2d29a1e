#!/usr/bin/env python3
"""Runs Kafka's console tools against Freezeframe and against a real Kafka, and compares what they print.

    compare-tools.py [--keep DIR] [TEXT]

Both servers are started here, the first from FREEZEFRAME_BINARY (else target/release/freezeframe), the second by run-kafka.sh.
Each step of tool-steps.txt runs on both, and prints `ok` or `FAILED` with a diff: `-` is a line of Kafka, `+` one of
Freezeframe. Lines are compared as `normalize` leaves them. tool-differences.txt has the lines that may differ, and why; one
that does not differ any more fails too. With TEXT, only steps that contain it are shown; all run, since they build on each
other. DIR keeps what each step printed, normalized.
"""

import difflib
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
STEP_SECONDS = 20
SHOWN_MAX = 40
# Begins a line of output that fails the step, although both servers have it.
MISSING = "expected to see"
POLL_SECONDS = 5
# Steps that change nothing: while their outputs differ, they run again. Kafka's broker learns of a change after the controller
# has answered.
READING = re.compile(r"--describe|--list|--verify| describe| list|kafka-get-offsets|kafka-log-dirs|kafka-broker-api|find-hanging")


class Server:
    """A process that listens in the open and with SASL, and what differs from run to run in what tools print of it."""

    def __init__(self, name, directory):
        self.name = name
        self.directory = directory
        self.variables = {}
        self.process = None
        self.open = self.sasl = None
        self.addresses = {}

    def start(self, command, environment=None):
        """Runs it until it says where it serves, and returns that by the names of listeners."""
        self.log = open(self.directory / "log", "wb")
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        try:
            for line in self.process.stdout:
                if line.startswith("ready "):
                    return dict(part.split("=", 1) for part in line.split()[1:])
            sys.exit(f"{self.name} did not start:\n" + (self.directory / "log").read_text()[-3000:])
        except SystemExit:
            self.stop()
            raise

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def normalize(self, tool, text):
        """The lines of what a tool printed, without what is never twice the same."""
        text = text.replace(str(self.directory), "DIR")
        lines = []
        for line in text.splitlines():
            if re.match(r"\tat |\t\.\.\. \d+ more", line):
                continue
            for pattern, replacement in NORMALIZED:
                line = pattern.sub(replacement, line)
            for address, name in self.addresses.items():
                host, port = address.split(":")
                line = line.replace(address, name).replace(f"{host} {port} ", f"{name} ")
            lines += log_dirs(line) if line.startswith('{"brokers"') else [line.rstrip()]
        # What is in no order: users with passwords, what each has, and rules.
        if any(line.startswith("SCRAM credential configs") for line in lines):
            return sorted(map(sorted_settings, lines))
        if tool == "kafka-client-metrics":
            return sorted_parts("Client metrics configs", lines)
        return sorted_rules(lines) if tool == "kafka-acls" else lines


NORMALIZED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"[ \t]+", " "),
        # Ids of topics, of the cluster and of directories
        (r"(?<=TopicId: )[\w-]{22}|(?<=Cluster ID: )\S+|(?<=ClusterId: )\S+|(?<=\"directoryId\": \")[\w-]{22}", "ID"),
        (r"(?<=ReplicaKey\(id=1, directoryId=)[\w-]{22}", "ID"),
        # Of members and of clients
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<= )[\w-]{22}(?= /127.0.0.1 )", "UUID"),
        (r"(?<=adminclient-)\d+", "N"),
        # Of tokens
        (r"(?<=tokenId : )[\w-]{22}", "ID"),
        (r"^[\w-]{22} (HMAC|\S{80,}) (?=User:)", "ID HMAC "),
        # Times, and how long something took
        (r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]", "TIME"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d\.\d+Z?)?|\b1[789]\d{11}\b", "TIME"),
        (r"(?<=CompleteCommit 60000 TIME )\d+", "MS"),
        (r"\d+ ms ago", "MS ago"),
        (r"(?<= records sent, ).*", "…"),
        (r"deadlineMs=\d+, tries=\d+, nextAllowedTryMs=-?\d+\) (timed out at \d+ after )?\d+ attempt", "…"),
        # Offsets and epochs of the metadata log, and sizes
        (r"(?<= Epoch: )\d+|(?<=HighWatermark: )\d+", "N"),
        (r"^1 [\w-]{22} \d+(?= 0 )", "1 ID N"),
        (r'(?<="size":)\d+', "N"),
        # How Kafka's brokers name a request that they refuse
        (r"Request Request\(.*\) (?=needs [A-Z_]+ permission)", "Request … "),
    ]
]


def log_dirs(line):
    """The JSON of kafka-log-dirs, with a line for each partition, in their order."""
    answer = json.loads(line.replace('"size":N', '"size":"N"'))
    lines = []
    for broker in answer["brokers"]:
        for directory in broker["logDirs"]:
            partitions = directory.pop("partitions")
            lines.append(f"broker {broker['broker']}: {json.dumps(directory, sort_keys=True)}")
            lines += sorted(json.dumps(partition) for partition in partitions)
    return lines


def sorted_parts(head, lines):
    """Lines in parts that begin with `head`, with the parts in order."""
    before, *parts = re.split(rf"^(?={head})", "\n".join(lines) + "\n", flags=re.M)
    return (before + "".join(sorted(parts))).splitlines()


def sorted_settings(line):
    """A line of kafka-configs about a user, with what it has in order."""
    subject, separator, settings = line.partition(" are ")
    return subject + separator + ", ".join(sorted(settings.split(", ")))


def sorted_rules(lines):
    """What kafka-acls lists, with the resources in order, and the rules of each."""
    before, *resources = re.split(r"^(?=Current ACLs)", "\n".join(filter(None, lines)) + "\n", flags=re.M)
    sections = ([head, *sorted(rules)] for head, *rules in map(str.splitlines, resources))
    return before.splitlines() + sum(sorted(sections), [])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# What both are told. ANONYMOUS is who comes to the open port: the steps, and Kafka itself.
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "delegation.token.secret.key": "a key for tests",
    "group.initial.rebalance.delay.ms": "0",
}
# What run-kafka.sh sets for a single broker besides.
SINGLE_BROKER = {
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def start_freezeframe(directory):
    server = Server("freezeframe", directory)
    binary = os.environ.get("FREEZEFRAME_BINARY", HERE.parent.parent / "target/release/freezeframe")
    if not os.access(binary, os.X_OK):
        sys.exit(f"compare-tools.py: no server: {binary}")
    settings = dict(SETTINGS, **SINGLE_BROKER, listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0")
    secret = settings.pop("delegation.token.secret.key")
    command = [binary, "serve", "--data-dir", directory / "data"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    ready = server.start(command, dict(os.environ, FREEZEFRAME_KAFKA_DELEGATION_TOKEN_SECRET_KEY=secret))
    server.open, server.sasl = ready["kafka"], ready["kafka-sasl_plaintext"]
    server.addresses = {server.open: "OPEN", server.sasl: "SASL"}
    return server


def start_kafka(directory):
    server = Server("kafka", directory)
    port, sasl, controller = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = dict(SETTINGS)
    settings.update(
        {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": login,
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": login,
        }
    )
    server.start([HERE / "run-kafka.sh", directory, port] + [f"{key}={value}" for key, value in settings.items()])
    server.open, server.sasl = f"127.0.0.1:{port}", f"127.0.0.1:{sasl}"
    server.addresses = {server.open: "OPEN", server.sasl: "SASL", f"127.0.0.1:{controller}": "CONTROLLER"}
    return server


class Tools:
    """The JVM that runs tools. Its directory has the files that they are given."""

    def __init__(self, directory):
        self.directory = directory
        self.classes = {}
        jars = subprocess.run([HERE / "jars.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.errors = open(directory / "errors", "wb")
        self.process = subprocess.Popen(
            ["java", "-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*",
             f"-Dlog4j2.configurationFile={HERE}/log4j2.properties", HERE / "ToolRunner.java"],
            cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("the JVM of the tools is gone:\n" + (self.directory / "errors").read_text()[-3000:])
        return json.loads(answer)

    def main_class(self, tool):
        if tool not in self.classes:
            found = subprocess.run([HERE / "console.sh", "--class", tool], stdout=subprocess.PIPE, text=True, check=True)
            self.classes[tool] = found.stdout.strip()
        return self.classes[tool]

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


class Step:
    """A line of tool-steps.txt:

        [NAME=/REGEX/] [USER:] [start NAME:] TOOL ARGUMENT… [<<< INPUT]
        stop NAME
        until /REGEX/ TOOL ARGUMENT…
    """

    def __init__(self, line):
        self.name = line
        self.variable = self.start = self.user = self.until = self.stop = self.tool = None
        if found := re.match(r"stop (\S+)$", line):
            self.stop = found[1]
            return
        if found := re.match(r"until /(.*?)/ ", line):
            self.until = re.compile(found[1])
            line = line[found.end():]
        if found := re.match(r"([A-Z_]+)=/(.*?)/ ", line):
            self.variable = (found[1], re.compile(found[2]))
            line = line[found.end():]
        if found := re.match(r"start (\S+): ", line):
            self.start = found[1]
            line = line[found.end():]
        if found := re.match(r"(\w+): ", line):
            self.user = found[1]
            line = line[found.end():]
        words = shlex.split(line)
        self.input = ""
        if "<<<" in words:
            self.input = words.pop().replace("\\n", "\n") + "\n"
            words.pop()
        self.tool, *self.arguments = words

    def request(self, server, tools):
        if self.stop:
            return {"stop": self.stop + server.name}
        options = ["--bootstrap-server", server.sasl if self.user else server.open]
        options += ["--command-config", f"{self.user or 'anonymous'}.properties"]
        arguments = [re.sub(r"\$([A-Z_]+)", lambda found: server.variables.get(found[1], "NONE"), each) for each in self.arguments]
        # kafka-cluster has its options behind the command, all others take them in front.
        at = 1 if self.tool == "kafka-cluster" else 0
        request = {
            "main": tools.main_class(self.tool),
            "args": arguments[:at] + options + arguments[at:],
            "input": self.input,
            "seconds": STEP_SECONDS,
        }
        if self.start:
            request["start"] = self.start + server.name
        return request

    def run(self, server, tools):
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            answer = tools.ask(self.request(server, tools))
            text = answer.get("out", "") + answer.get("err", "")
            if not self.until or self.until.search(text):
                break
            if time.monotonic() > deadline:
                text += f"{MISSING} /{self.until.pattern}/\n"
                break
        if self.variable:
            name, pattern = self.variable
            found = pattern.search(text)
            if found:
                server.variables[name] = found[1]
            else:
                text += f"{MISSING} /{pattern.pattern}/\n"
        # A step may print what another one has found.
        for name, value in server.variables.items():
            text = text.replace(value, name)
        lines = server.normalize(self.tool, text)
        return lines + ([f"exit status {answer['status']}"] if "status" in answer else [])


def read_steps(directory):
    """The steps; `file NAME CONTENT` writes a file."""
    steps = []
    for line in (HERE / "tool-steps.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("file "):
            _, name, content = line.split(" ", 2)
            (directory / name).write_text(content.replace("\\n", "\n") + "\n")
        else:
            steps.append(Step(line))
    return steps


class KnownDifference:
    """A paragraph of tool-differences.txt: `# why`, `step PATTERN`, and lines of a diff. `*` stands for any text."""

    def __init__(self, paragraph):
        self.reason = " ".join(line[1:].strip() for line in paragraph if line.startswith("#"))
        self.steps = [line[5:] for line in paragraph if line.startswith("step ")]
        self.lines = [line for line in paragraph if line[0] in "-+"]
        self.unseen = {f"step {pattern}" for pattern in self.steps} | set(self.lines)
        if not (self.reason and self.steps and self.lines):
            sys.exit("tool-differences.txt: a paragraph needs a reason, a step and lines:\n" + "\n".join(paragraph))

    def covers(self, step, line):
        """Is this line of the step's diff known? Remembers that it was seen."""
        steps = [f"step {pattern}" for pattern in self.steps if matches(step, pattern)]
        lines = [pattern for pattern in self.lines if matches(line, pattern)]
        if steps and lines:
            self.unseen -= set(steps + lines)
        return bool(steps and lines)


def matches(text, pattern):
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def read_differences():
    text = (HERE / "tool-differences.txt").read_text()
    return [KnownDifference(part.splitlines()) for part in text.split("\n\n") if re.search("^step ", part, re.M)]


def differences(expected, seen):
    """Lines of a diff, without those that both have."""
    lines = difflib.unified_diff(expected, seen, lineterm="", n=0)
    return [line for line in lines if not re.match(r"@@|--- $|\+\+\+ $", line)]


def main():
    arguments = sys.argv[1:]
    keep = None
    if arguments[:1] == ["--keep"]:
        keep = pathlib.Path(arguments[1])
        keep.mkdir(parents=True, exist_ok=True)
        arguments = arguments[2:]
    only = " ".join(arguments)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="compare-tools-"))
    running = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for name in ("ours", "kafka", "files"):
            (directory / name).mkdir()
        steps = read_steps(directory / "files")
        known = read_differences()
        running.append(start_freezeframe(directory / "ours"))
        running.append(start_kafka(directory / "kafka"))
        running.append(Tools(directory / "files"))
        failures = compare(*running, steps, known, keep, only)
    finally:
        for each in running:
            each.stop()
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(min(failures, 1))


def compare(freezeframe, kafka, tools, steps, known, keep, only):
    failures = 0
    started = time.monotonic()
    for number, step in enumerate(steps):
        deadline = time.monotonic() + POLL_SECONDS
        while True:
            expected = step.run(kafka, tools)
            seen = step.run(freezeframe, tools)
            diff = differences(expected, seen)
            surprises = [line for line in diff if not any(each.covers(step.name, line) for each in known)]
            surprises += [f" {line}" for line in expected if line.startswith(MISSING)]
            if not surprises or not READING.search(step.name) or time.monotonic() > deadline:
                break
        if keep:
            for name, lines in (("kafka", expected), ("ours", seen), ("diff", surprises)):
                (keep / f"{number:03} {name}").write_text("\n".join([f"# {step.name}"] + lines) + "\n")
        failures += bool(surprises)
        if only in step.name:
            shown = ("    " + line for line in surprises[:SHOWN_MAX])
            print(("FAILED " if surprises else "ok ") + step.name, *shown, sep="\n", flush=True)
    for each in known:
        for unseen in sorted(each.unseen):
            failures += 1
            print(f"FAILED known difference: expected '{unseen}', saw no such difference. {each.reason}")
    print(f"{len(steps)} steps in {time.monotonic() - started:.0f} s, {failures} failed")
    return failures


if __name__ == "__main__":
    main()
