"""kazoo against a ZooKeeper server: with_kazoo.py --connect HOST:PORT --run NAME [--past] [--sasl USER:PASSWORD] [--tls HOST:PORT=CERTIFICATES]"""

import argparse
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    NoAuthError,
    NoNodeError,
    NodeExistsError,
    NotEmptyError,
    NotReadOnlyCallError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType
from kazoo.recipe.barrier import Barrier, DoubleBarrier
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.election import Election
from kazoo.recipe.lock import Semaphore
from kazoo.recipe.party import Party
from kazoo.recipe.queue import LockingQueue, Queue
from kazoo.security import make_acl, make_digest_acl
from steps import PATIENCE_S, Mismatch, Steps, equal, wait_until


def raises(error, call, *args, **kwargs):
    try:
        seen = call(*args, **kwargs)
    except error:
        return
    raise Mismatch(f"expected {error.__name__}, saw {seen}")


class Clients:
    """Clients that end with the program."""

    def __init__(self, connect, root):
        self.connect, self.root, self.open = connect, root, []

    def begin(self, chroot=None, **options):
        client = KazooClient(self.connect + (self.root if chroot is None else chroot), timeout=10, **options)
        client.start(timeout=PATIENCE_S)
        self.open.append(client)
        return client

    def end(self):
        for client in self.open:
            client.stop()
            client.close()


def nodes(a, b):
    def create_read_update_delete():
        a.create("/n", b"one")
        raises(NodeExistsError, a.create, "/n", b"")
        raises(NoNodeError, a.create, "/none/n", b"")
        data, stat = b.get("/n")
        equal("data", (b"one", 0, 3, 0), (data, stat.version, stat.dataLength, stat.numChildren))
        changed = a.set("/n", b"two", version=0)
        equal("version", 1, changed.version)
        equal("zxids", True, changed.mzxid > changed.czxid == stat.czxid)
        raises(BadVersionError, a.set, "/n", b"", version=0)
        a.create("/n/c", b"")
        raises(NotEmptyError, a.delete, "/n")
        equal("children", (["c"], 1), (b.get_children("/n"), b.exists("/n").cversion))
        a.delete("/n", recursive=True)
        equal("znode", None, b.exists("/n"))

    def empty_is_not_null():
        a.create("/empty", b"")
        equal("data", b"", b.get("/empty")[0])
        a.set("/empty", None)
        equal("data", None, b.get("/empty")[0] or None)
        equal("length", 0, b.exists("/empty").dataLength)

    def names():
        a.ensure_path("/deep/er/still")
        a.create("/gr\u00fc\u00dfe", "\u20ac".encode())
        equal("data", "\u20ac".encode(), b.get("/gr\u00fc\u00dfe")[0])
        made = [a.create("/seq-", b"", sequence=True) for _ in range(3)]
        equal("names", sorted(made), made)
        equal("distance", 2, int(made[2][-10:]) - int(made[0][-10:]))

    def ephemerals_go_with_their_session(begin):
        other = begin()
        other.create("/mine", b"", ephemeral=True)
        equal("owner", other.client_id[0], b.exists("/mine").ephemeralOwner)
        gone = threading.Event()
        b.exists("/mine", watch=lambda event: gone.set())
        other.stop()
        equal("event", True, gone.wait(PATIENCE_S))
        equal("znode", None, b.exists("/mine"))

    def transactions():
        done = a.transaction()
        done.create("/t", b"")
        done.set_data("/t", b"x")
        done.check("/t", 1)
        done.create("/t/s-", b"", sequence=True)
        results = done.commit()
        equal("results", ["/t", 1, True], [results[0].split("/")[-1] and "/t", results[1].version, results[2]])
        undone = a.transaction()
        undone.create("/u", b"")
        undone.check("/t", 7)
        undone.delete("/t")
        results = undone.commit()
        kinds = [type(result) for result in results]
        equal("results", [RolledBackError, BadVersionError, RuntimeInconsistency], kinds)
        equal("znode", None, b.exists("/u"))

    def pipelined():
        asked = [a.create_async(f"/p{n}", b"x" * 128) for n in range(1000)]
        for answer in asked:
            answer.get(timeout=PATIENCE_S)
        order = [b.exists(f"/p{n}").czxid for n in (0, 1, 500, 999)]
        equal("order", sorted(order), order)

    return create_read_update_delete, empty_is_not_null, names, ephemerals_go_with_their_session, transactions, pipelined


def acls(a, b, begin):
    def digest():
        acl = make_digest_acl("user", "secret", all=True)
        a.create("/private", b"s", acl=[acl])
        raises(NoAuthError, b.get, "/private")
        allowed = begin()
        allowed.add_auth("digest", "user:secret")
        equal("data", b"s", allowed.get("/private")[0])
        equal("acl", acl.id.id, allowed.get_acls("/private")[0][0].id.id)
        raises(NoAuthError, b.set_acls, "/private", [acl])
        raises(NoAuthError, b.set, "/private", b"")

    return (digest,)


def watches(a, b, begin):
    def one_shot():
        seen = []
        a.create("/w", b"")
        b.get("/w", watch=seen.append)
        b.get_children("/w", watch=seen.append)
        b.exists("/w/c", watch=seen.append)
        a.create("/w/c", b"")
        a.set("/w", b"x")
        a.set("/w", b"y")
        wait_until("three events", lambda: b.sync("/w") and len(seen) >= 3)
        kinds = sorted(event.type for event in seen)
        equal("events", sorted([EventType.CREATED, EventType.CHILD, EventType.CHANGED]), kinds)

    def data_watch_and_children_watch():
        values, children = [], []
        b.DataWatch("/dw", lambda data, stat: values.append(data))
        a.create("/dw", b"1")
        a.set("/dw", b"2")
        wait_until("the last value", lambda: values[-1:] == [b"2"])
        b.ChildrenWatch("/dw", lambda names: children.append(sorted(names)))
        a.create("/dw/a", b"")
        a.create("/dw/b", b"")
        wait_until("both children", lambda: children[-1:] == [["a", "b"]])

    def a_session_goes_on_after_its_connection():
        first = begin()
        first.create("/keeps", b"", ephemeral=True)
        fired = threading.Event()
        first.exists("/later", watch=lambda event: fired.set())
        before = first.client_id[0]
        first._connection._socket.shutdown(2)
        wait_until("another connection", lambda: first.connected and first.retry(first.exists, "/keeps"))
        equal("session", before, first.client_id[0])
        a.create("/later", b"")
        equal("event", True, fired.wait(PATIENCE_S))

    return one_shot, data_watch_and_children_watch, a_session_goes_on_after_its_connection


def recipes(a, b, begin):
    def lock():
        held, other = a.Lock("/lock", "a"), b.Lock("/lock", "b")
        held.acquire()
        equal("second holder", False, other.acquire(blocking=False))
        equal("contenders", ["a"], [name for name in b.Lock("/lock").contenders()][:1])
        held.release()
        equal("second holder", True, other.acquire(timeout=PATIENCE_S))
        other.release()

    def election():
        leaders = []
        first, second = begin(), begin()
        stay = threading.Event()
        threads = [
            threading.Thread(
                target=lambda c=client, n=name: Election(c, "/election", n).run(lambda: (leaders.append(n), stay.wait(PATIENCE_S))),
                daemon=True,
            )
            for client, name in ((first, "1"), (second, "2"))
        ]
        for thread in threads:
            thread.start()
        wait_until("a leader", lambda: leaders)
        equal("leaders", 1, len(leaders))
        stay.set()
        wait_until("the other one", lambda: len(leaders) == 2)

    def counter_queue_party_semaphore():
        counter = a.Counter("/counter")
        counter += 3
        equal("counter", 3, b.Counter("/counter").value)
        Queue(a, "/queue").put(b"q")
        equal("queue", b"q", Queue(b, "/queue").get())
        LockingQueue(a, "/lqueue").put(b"l")
        taken = LockingQueue(b, "/lqueue")
        equal("queue", b"l", taken.get(timeout=PATIENCE_S))
        taken.consume()
        Party(a, "/party", "me").join()
        equal("party", ["me"], list(Party(b, "/party")))
        leases = [Semaphore(client, "/semaphore", max_leases=1) for client in (a, b)]
        leases[0].acquire()
        equal("second lease", False, leases[1].acquire(blocking=False))
        leases[0].release()

    def barriers():
        barrier = Barrier(a, "/barrier")
        barrier.create()
        equal("barrier", False, Barrier(b, "/barrier").wait(0.1))
        barrier.remove()
        equal("barrier", True, Barrier(b, "/barrier").wait(PATIENCE_S))
        entered = []
        threads = [
            threading.Thread(target=lambda c=client: (DoubleBarrier(c, "/double", 2).enter(), entered.append(1)), daemon=True)
            for client in (a, b)
        ]
        for thread in threads:
            thread.start()
        wait_until("both inside", lambda: len(entered) == 2)

    def tree_cache():
        a.ensure_path("/cache")
        cache, seen = TreeCache(b, "/cache"), []
        cache.listen(lambda event: seen.append(event.event_type))
        cache.start()
        wait_until("the first state", lambda: TreeEvent.INITIALIZED in seen)
        a.create("/cache/x", b"1")
        wait_until("the new znode", lambda: cache.get_data("/cache/x") is not None)
        a.set("/cache/x", b"2")
        wait_until("the new value", lambda: cache.get_data("/cache/x").data == b"2")
        a.delete("/cache/x")
        wait_until("its end", lambda: cache.get_data("/cache/x") is None)
        cache.close()

    return lock, election, counter_queue_party_semaphore, barriers, tree_cache


def past(a, clients):
    def a_chroot_shows_the_tree_as_it_was():
        a.create("/past", b"one")
        a.create("/past/child", b"")
        # Milliseconds of the server, which is this machine's.
        begun = int(time.time() * 1000)
        wait_until("a later millisecond", lambda: int(time.time() * 1000) > begun + 1)
        moment = begun + 1
        a.set("/past", b"two")
        a.delete("/past/child")
        then = clients.begin(f"/.at/s{moment}{clients.root}")
        equal("data", b"one", then.get("/past")[0])
        equal("children", ["child"], then.get_children("/past"))
        raises(NotReadOnlyCallError, then.set, "/past", b"")
        equal("data now", b"two", a.get("/past")[0])

    return (a_chroot_shows_the_tree_as_it_was,)


def sasl(a, clients, user, password):
    options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}

    def a_sasl_user_owns_its_znodes():
        member = clients.begin(sasl_options=options)
        member.create("/sasl-kazoo", b"x", acl=[make_acl("sasl", user, all=True)])
        equal("data", b"x", member.get("/sasl-kazoo")[0])
        raises(NoAuthError, a.get, "/sasl-kazoo")

    def a_wrong_password_of_sasl_is_refused():
        impostor = KazooClient(clients.connect, sasl_options={**options, "password": "wrong"})
        try:
            impostor.start(timeout=PATIENCE_S)
            raises((AuthFailedError, ConnectionClosedError), impostor.get, "/")
        finally:
            impostor.stop()
            impostor.close()

    return (a_sasl_user_owns_its_znodes, a_wrong_password_of_sasl_is_refused)


def tls(connect, certificates, run):
    def secured(name):
        client = KazooClient(
            connect,
            timeout=10,
            use_ssl=True,
            ca=f"{certificates}/trust.pem",
            certfile=f"{certificates}/{name}.crt",
            keyfile=f"{certificates}/{name}.key",
        )
        client.start(timeout=PATIENCE_S)
        return client

    def over_tls_a_client_is_who_its_certificate_says():
        member, other = secured("member"), secured("other")
        path = f"/tls-kazoo-{run}"
        member.create(path, b"x", acl=[make_acl("auth", "", all=True)])
        equal("scheme", "x509", member.get_acls(path)[0][0].id.scheme)
        raises(NoAuthError, other.get, path)
        pending = [member.set_async(path, bytes([n]) * 10_000) for n in range(200)]
        equal("versions", list(range(1, 201)), [change.get(timeout=PATIENCE_S).version for change in pending])
        equal("data", bytes([199]) * 10_000, member.get(path)[0])
        for client in (member, other):
            client.stop()
            client.close()

    return (over_tls_a_client_is_who_its_certificate_says,)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--connect", required=True)
    arguments.add_argument("--run", required=True)
    arguments.add_argument("--past", action="store_true")
    arguments.add_argument("--sasl")
    arguments.add_argument("--tls")
    given = arguments.parse_args()
    steps = Steps()
    clients = Clients(given.connect, f"/clients-{given.run}-kazoo")
    top = clients.begin("")
    top.ensure_path(clients.root)
    a, b = clients.begin(), clients.begin()
    for body in nodes(a, b):
        name = body.__name__.replace("_", "-")
        steps.step(name, (lambda: body(clients.begin)) if "ephemerals" in name else body)
    groups = [acls(a, b, clients.begin), watches(a, b, clients.begin), recipes(a, b, clients.begin)]
    if given.past:
        groups.append(past(a, clients))
    if given.sasl:
        groups.append(sasl(a, clients, *given.sasl.split(":", 1)))
    if given.tls:
        groups.append(tls(*given.tls.split("=", 1), given.run))
    for group in groups:
        for body in group:
            steps.step(body.__name__.replace("_", "-"), body)
    clients.end()
    raise SystemExit(1 if steps.failures else 0)


if __name__ == "__main__":
    main()
