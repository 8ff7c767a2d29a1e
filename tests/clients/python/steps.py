"""Runs named steps and prints one line for each; a step that fails does not stop the next."""

import os
import threading
import time

T0 = 1_700_000_000_000
PATIENCE_S = 10.0
# A broker without moments lets each of step f run into this, and the other steps still have their time.
MOMENT_S = 4.0


class Mismatch(Exception):
    """What a step expected and did not see."""


def equal(what, expected, seen):
    if expected != seen:
        raise Mismatch(f"expected {what} {expected}, saw {seen}")


def wait_until(expected, holds, limit_s=PATIENCE_S):
    """Asks until it holds. Mostly the condition itself waits (a poll, a request); the pause only spares the broker."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise Mismatch(f"expected {expected}, saw none of it within {limit_s} s")
        time.sleep(0.01)


def next_millisecond():
    """A moment that no record produced so far lies after, and every later one does. The clock is this machine's."""

    def now():
        return time.time_ns() // 1_000_000

    m = now() + 1
    while now() <= m:
        pass
    return m


class Steps:
    def __init__(self, limit_s=180):
        self.failures = 0
        self._running = "start"
        watchdog = threading.Timer(limit_s, self._halt, (limit_s,))
        watchdog.daemon = True
        watchdog.start()

    def step(self, name, body):
        self._running = name
        try:
            body()
            print(f"ok {name}", flush=True)
        except Exception as problem:
            self.failures += 1
            said = str(problem) if isinstance(problem, Mismatch) else f"expected no exception, saw {problem!r}"
            print(f"FAILED {name}: {' '.join(said.split())}", flush=True)

    def _halt(self, limit_s):
        """A client that hangs inside one call is a failure too."""
        print(f"FAILED {self._running}: expected the run to end within {limit_s} s, saw it here", flush=True)
        os._exit(1)
