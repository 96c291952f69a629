"""Closes the connections of a process group from outside, so that a blocked exchange fails at once.

Gloo cannot interrupt a collective that waits for a peer which waits for a dead one: it ends at its
time-out. Shutting its sockets makes every such wait fail in milliseconds. Linux only (`/proc/self/fd`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_RECEIVED, _SENT = 128, 200  # offsets of the byte counters in Linux's tcp_info

Sockets = frozenset[tuple[int, int]]
"""(file descriptor, inode): a descriptor alone may have been closed and used again."""


def open_sockets() -> Sockets:
    """Sockets of this process now."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                found.add((int(name), int(target[8:-1])))
    return frozenset(found)


def unanswered(port: int) -> dict[tuple[int, int], str]:
    """Incoming connections at `port` of this process that sent data and got no answer: peer address by socket.

    Empty where the kernel does not count bytes (Linux does since 4.19).
    """
    found = {}
    for descriptor, inode in open_sockets():
        with contextlib.suppress(OSError, struct.error), socket.socket(fileno=os.dup(descriptor)) as handle:
            if handle.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if handle.getsockname()[1] != port or handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            counts = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            (received,), (sent,) = (struct.unpack_from("Q", counts, _RECEIVED), struct.unpack_from("Q", counts, _SENT))
            if received and not sent:
                found[descriptor, inode] = handle.getpeername()[0]
    return found


def shut(sockets: Sockets) -> int:
    """Shut connected TCP sockets that are still the same; returns how many. Listening ones are left alone."""
    count = 0
    for descriptor, inode in sockets:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino != inode:
                continue
            with socket.socket(fileno=os.dup(descriptor)) as handle:
                is_tcp = handle.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and not handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    handle.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count
