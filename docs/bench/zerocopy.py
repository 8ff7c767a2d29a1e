#!/usr/bin/env python3
"""Sends out of memory over loopback with and without MSG_ZEROCOPY, in turns, and prints the rate and the sender's CPU time.

    zerocopy.py [ROUNDS [MiB of one turn]]

With MSG_ZEROCOPY the kernel reports when it is done with the memory, and whether it has copied after all; both are read here as
a server would have to. Linux copies where both ends are on one machine.
"""

import os
import resource
import select
import socket
import statistics
import struct
import sys
import time

SO_ZEROCOPY, MSG_ZEROCOPY, MSG_ERRQUEUE = 60, 0x4000000, 0x2000
CODE_COPIED = 1
SIZE = 1 << 20


def reports(sock, wait):
    """How many sends the kernel is done with, and how many of them it copied."""
    done = copied = 0
    if wait:
        poll = select.poll()
        poll.register(sock, 0)
        poll.poll(1000)
    while True:
        try:
            _, ancillary, _, _ = sock.recvmsg(0, 256, MSG_ERRQUEUE)
        except BlockingIOError:
            return done, copied
        for _, _, data in ancillary:
            _, _, _, code, _, first, last = struct.unpack_from("=IBBBBII", data)
            done += last - first + 1
            copied += (last - first + 1) if code & CODE_COPIED else 0


def turn(zerocopy, total):
    """Sends `total` bytes. Returns bytes a second, CPU seconds per GB, and the share that was copied."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        taken, buffer = socket.create_connection(listener.getsockname()), bytearray(SIZE)
        while taken.recv_into(buffer):
            pass
        os._exit(0)
    sock, _ = listener.accept()
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, int(zerocopy))
    payload = memoryview(bytearray(os.urandom(4096)) * (SIZE // 4096))
    sock.setblocking(False)
    flags = MSG_ZEROCOPY if zerocopy else 0
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    sent = calls = done = copied = 0
    while sent < total or done < calls:
        if sent < total:
            try:
                sent += sock.send(payload[sent % SIZE:], flags)
                calls += zerocopy
            except BlockingIOError:
                select.select([], [sock], [])
            except OSError:  # too many reports wait
                pass
        if calls:
            found = reports(sock, sent >= total)
            done, copied = done + found[0], copied + found[1]
    sock.close()
    os.waitpid(child, 0)
    took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return sent / took, cpu / (sent / 1e9), copied / calls if calls else 1.0


def main():
    given = sys.argv[1:]
    rounds, total = int(given[0]) if given else 5, (int(given[1]) if given[1:] else 4096) << 20
    found = {False: [], True: []}
    for _ in range(rounds):
        for zerocopy in found:
            found[zerocopy].append(turn(zerocopy, total))
    for zerocopy, turns in found.items():
        rate, cpu, copied = (statistics.median(values) for values in zip(*turns))
        name = "MSG_ZEROCOPY" if zerocopy else "send"
        print(f"{name:13} {rate / 1e6:6.0f} MB/s   {cpu:5.3f} sender CPU s/GB   {copied:4.0%} copied by the kernel")


main()
