"""Which processes are ours, told by proof and never by name.

A process is ours when its pid and its start time are those we wrote down, when its environment holds the
run's token (128 random bits, inherited by everything it starts), or, while we hold a namespace open, when it
lives in it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["TOKEN", "alive", "end", "living_in", "started_ticks", "with_token"]

TOKEN = "ISTHMUS_TUNNEL"
_PROC = Path("/proc")


def started_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None when there is no such process or only its zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def alive(pid: int, ticks: int) -> bool:
    """Whether the process that had `pid` and started at `ticks` still runs."""
    return started_ticks(pid) == ticks


def with_token(token: str) -> set[tuple[int, int]]:
    """(pid, start) of every process of this user whose environment holds `token`."""
    needle = f"{TOKEN}={token}".encode()

    def ours(pid: int) -> bool:
        return needle in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")

    return _which(ours)


def living_in(network_fds: Iterable[int]) -> set[tuple[int, int]]:
    """(pid, start) of every process, this one apart, in one of the network namespaces held by
    `network_fds`."""
    spaces = {(found.st_dev, found.st_ino) for found in map(os.fstat, network_fds)}

    def ours(pid: int) -> bool:
        found = os.stat(_PROC / str(pid) / "ns" / "net")
        return (found.st_dev, found.st_ino) in spaces

    return _which(ours)


def end(find: Callable[[], set[tuple[int, int]]], grace_s: float) -> set[tuple[int, int]]:
    """Terminate what `find` finds, kill what is left after `grace_s`, until it finds nothing; returns all that it found.

    The search is repeated because a process may start another between search and signal.
    """
    found, deadline = find(), time.monotonic() + grace_s
    ended = set(found)
    for each in found:
        _signal(each, signal.SIGTERM if grace_s else signal.SIGKILL)
    while found := find():
        ended |= found
        if time.monotonic() >= deadline:
            for each in found:
                _signal(each, signal.SIGKILL)
        if time.monotonic() > deadline + 10:
            break  # stuck in the kernel; it dies when it returns from there
        time.sleep(0.02)
    return ended


def _which(ours: Callable[[int], bool]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for entry in os.listdir(_PROC):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            mine = ours(int(entry))
        except OSError:  # gone meanwhile, or another user's: not ours
            continue
        ticks = started_ticks(int(entry))
        if mine and ticks is not None:
            found.add((int(entry), ticks))
    return found


def _signal(each: tuple[int, int], number: signal.Signals) -> None:
    pid, ticks = each
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if alive(pid, ticks):  # the descriptor pins the process, so a reused pid cannot slip in between
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        os.close(handle)
