"""`freezeframe zk import` from Apache ZooKeeper, running and from its files, compared with what that shows itself.

import.py FREEZEFRAME WORKDIR    (kazoo is needed)
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

HERE = os.path.dirname(os.path.abspath(__file__))
SUPER = "super:test"
SUPER_DIGEST = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="


def apache(verb, address, work):
    subprocess.run([f"{HERE}/real-zk.sh", verb, address, work], check=True, stdout=subprocess.DEVNULL)


def connect(address):
    client = KazooClient(address)
    client.start()
    client.add_auth("digest", SUPER)
    return client


def change(client, rng, count, tag):
    """Changes of all kinds, some of which are refused."""
    paths = [""]
    for nth in range(count):
        path = rng.choice(paths)
        kind = rng.randrange(9)
        try:
            if kind < 3:
                own = [make_digest_acl("u", "p", all=True)]
                acl = own if rng.random() < 0.2 else OPEN_ACL_UNSAFE
                data = rng.randbytes(rng.randrange(300))
                is_sequential = rng.random() < 0.2
                paths.append(client.create(f"{path}/{tag}{nth}", data, acl=acl, sequence=is_sequential))
            elif kind == 3:
                client.create(f"{path}/{tag}e{nth}", b"e", ephemeral=True)
            elif kind == 4:
                client.set(path, rng.randbytes(rng.randrange(3000)))
            elif kind == 5:
                client.delete(path)
                paths.remove(path)
            elif kind == 6:
                multi = client.transaction()
                multi.create(f"{path}/{tag}m{nth}", b"m")
                multi.create(f"{path}/{tag}m{nth}/x", b"y")
                multi.set_data(path, b"z")
                multi.commit()
            elif kind == 7:
                client.set_acls(path, [make_digest_acl("v", "w", read=True)] + OPEN_ACL_UNSAFE)
        except (KazooException, ValueError):
            pass


def dump(address):
    """Data, list and kind of each znode that is not ephemeral, but for the root and the server's own."""
    client, found, open_paths = connect(address), {}, ["/"]
    while open_paths:
        path = open_paths.pop()
        data, stat = client.get(path)
        if stat.ephemeralOwner > 0:
            continue
        acl, _ = client.get_acls(path)
        found[path] = (data, sorted(map(str, acl)), stat.ephemeralOwner)
        below = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
        open_paths += [path for path in below if path != "/zookeeper"]
    client.stop()
    del found["/"]
    return found


class Freezeframe:
    """A server with an empty store."""

    def __init__(self, program):
        self.program, self.data = program, tempfile.mkdtemp()
        settings = ["--set", "zookeeper.extendedTypesEnabled=true"]
        environment = {**os.environ, "FREEZEFRAME_ZOOKEEPER_SUPERDIGEST": SUPER_DIGEST}
        arguments = ["serve", "--data-dir", f"{self.data}/store", "--kafka", "off", "--zookeeper", "127.0.0.1:0"]
        self.process = subprocess.Popen([program, *arguments, *settings], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        ready = dict(word.split("=", 1) for word in self.process.stdout.readline().split()[1:])
        self.address = ready["zookeeper"]

    def zk(self, *arguments, address=None):
        command = [self.program, "zk", "--zookeeper", address or self.address, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.data)


def imported(program, *source):
    server = Freezeframe(program)
    try:
        said = server.zk("import", *source, "--from-auth", f"digest:{SUPER}", "--auth", f"digest:{SUPER}")
        return dump(server.address), said
    finally:
        server.stop()


def damaged_copy(data):
    """Of the data directory, with the end of the newest snapshot cut off."""
    copy = tempfile.mkdtemp()
    shutil.copytree(data, copy, dirs_exist_ok=True)
    files = f"{copy}/version-2"
    snapshots = [name for name in os.listdir(files) if name.startswith("snapshot.")]
    newest = max(snapshots, key=lambda name: int(name.split(".")[1], 16))
    os.truncate(f"{files}/{newest}", os.path.getsize(f"{files}/{newest}") // 2)
    return copy, len(snapshots)


def main():
    program, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    port = subprocess.run(["bash", "-c", f". {HERE}/lib.sh; free_port"], capture_output=True, text=True).stdout.strip()
    address, data = f"127.0.0.1:{port}", f"{work}/server-{port}/data"
    shutil.rmtree(f"{work}/server-{port}", ignore_errors=True)
    rng, results = random.Random(1), []
    apache("start", address, work)
    try:
        client = connect(address)
        change(client, rng, 1000, "a")
        client.stop()
        # Each start writes a snapshot.
        apache("stop", address, work)
        apache("start", address, work)
        client = connect(address)
        change(client, rng, 500, "b")
        for kind in (["--container"], ["--ttl", "10h"]):
            command = [program, "zk", "--zookeeper", address, "create", f"/{kind[0][2:]}", "x", *kind]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        expected = dump(address)
        copy, snapshots = damaged_copy(data)
        for name, source in (("running", address), ("stored", data), ("damaged", copy)):
            found, said = imported(program, source)
            is_right = found == expected and len(expected) > 300
            is_right = is_right and "missing" not in said
            is_right = is_right and ("checksum" in said or "ends inside" in said) == (name == "damaged")
            results.append(is_right)
            differing = [path for path in {**found, **expected} if found.get(path) != expected.get(path)]
            print(f"ok import-{name}" if is_right else f"FAILED import-{name}: {len(found)} of {len(expected)} znodes, {differing[:3]}, {snapshots} snapshots; {said}")
        client.stop()
        shutil.rmtree(copy)
    finally:
        apache("stop", address, work)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) and results else 1


if __name__ == "__main__":
    sys.exit(main())
