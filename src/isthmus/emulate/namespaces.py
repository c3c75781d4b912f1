"""Linux namespaces by file descriptor: make, enter, and set what lies inside. Nothing here has a name to leave behind."""

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["become_owner", "enter", "hold_new_network", "inside", "open_network", "open_user", "read_setting", "write_setting"]

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None, use_errno=True)


def become_owner() -> bool:
    """Move this single-threaded process to a network namespace it may configure; True when a user namespace was needed.

    The user namespace maps only this user, to itself: a program started in it is who it was outside, and has
    lost all capabilities by the time it runs.

    Raises:
        OSError: The kernel refuses; `refusal.explain` finds out why.
    """
    try:
        _unshare(_NEWNET)
        return False
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        _unshare(_NEWUSER | _NEWNET)
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root now
        write_setting("/proc/self/setgroups", "deny")
        write_setting("/proc/self/uid_map", f"{uid} {uid} 1")
        write_setting("/proc/self/gid_map", f"{gid} {gid} 1")
        return True


def hold_new_network() -> int:
    """Move to a new network namespace and return a descriptor that keeps it alive."""
    _unshare(_NEWNET)
    return open_network()


def open_network() -> int:
    """A descriptor of the network namespace this thread is in."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def open_user() -> int:
    """A descriptor of the user namespace this process is in."""
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def enter(net_fd: int) -> None:
    """Move this thread to the network namespace of `net_fd`."""
    _check(_libc.setns(net_fd, _NEWNET), "setns")


@contextmanager
def inside(net_fd: int, home_fd: int) -> Generator[None]:
    """Be in the namespace of `net_fd` for a while, then in that of `home_fd`."""
    enter(net_fd)
    try:
        yield
    finally:
        enter(home_fd)


def write_setting(path: str, value: str) -> None:
    """Write a file under /proc; a refusal is an OSError here and not a silent one at close."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def read_setting(path: str) -> str | None:
    """The text of a file under /proc, or None where the kernel has no such file."""
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().strip()
    except FileNotFoundError:
        return None


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
