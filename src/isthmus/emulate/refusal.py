"""Whether this machine lets this user make a tunnel, and when not, which switch forbids it."""

import errno
import subprocess
import sys
from collections.abc import Mapping

from isthmus.emulate import namespaces
from isthmus.errors import InputError

__all__ = ["SWITCHES", "explain", "probe", "setting"]

SWITCHES = (
    "kernel.unprivileged_userns_clone", "user.max_user_namespaces", "user.max_net_namespaces",
    "kernel.apparmor_restrict_unprivileged_userns",
)
_WHERE = "network namespaces"
_TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def unshare(flags):
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
def write(path, text):
    fd = os.open(path, os.O_WRONLY); os.write(fd, text.encode()); os.close(fd)
try:
    try:
        unshare(0x40000000)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        unshare(0x50000000)
        libc.prctl(4, 1, 0, 0, 0)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid} {uid} 1")
        write("/proc/self/gid_map", f"{gid} {gid} 1")
        unshare(0x40000000)
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    write("/proc/sys/net/ipv4/ip_forward", "1")
except OSError as error:
    print(error.errno); sys.exit(1)
"""


def probe() -> None:
    """Try, in a process that ends at once, what a tunnel needs.

    Raises:
        InputError: This is not Linux, or the kernel refuses; the switch that forbids it is named.
    """
    if sys.platform != "linux":
        raise InputError(_WHERE, f"the wind tunnel needs Linux, this is {sys.platform}", "run it in a Linux virtual machine")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _TRY], capture_output=True, text=True, check=False)
    if done.returncode:
        code = int(done.stdout.strip() or 0) or None
        raise explain(code, {name: setting(name) for name in SWITCHES})


def explain(code: int | None, switches: Mapping[str, str | None]) -> InputError:
    """The error for a refusal with errno `code`, given the switches as the kernel shows them (None: it has none)."""
    said = f"the kernel refuses this user a network namespace ({errno.errorcode.get(code or 0, 'no reason given')})"
    if switches.get("kernel.unprivileged_userns_clone") == "0":
        return InputError(_WHERE, f"{said}: kernel.unprivileged_userns_clone is 0", _allow("kernel.unprivileged_userns_clone=1"))
    for name in ("user.max_user_namespaces", "user.max_net_namespaces"):
        if switches.get(name) == "0":
            return InputError(_WHERE, f"{said}: {name} is 0", _allow(f"{name}=10000"))
    if switches.get("kernel.apparmor_restrict_unprivileged_userns") not in (None, "0"):
        name = "kernel.apparmor_restrict_unprivileged_userns"
        return InputError(_WHERE, f"{said}: {name} is {switches[name]}", _allow(f"{name}=0"))
    if code == errno.ENOSPC:
        shown = ", ".join(f"{name} = {switches.get(name)}" for name in ("user.max_user_namespaces", "user.max_net_namespaces"))
        return InputError(
            _WHERE, f"{said}: one of these limits is reached: {shown}", "raise it with sysctl, or end other containers"
        )
    return InputError(
        _WHERE, f"{said}, and no sysctl of {', '.join(SWITCHES)} forbids it: a container's seccomp filter does, most likely",
        "with docker add --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined, or run as root",
    )


def _allow(setting: str) -> str:
    return f"sudo sysctl {setting}, or run as root"


def setting(name: str) -> str | None:
    """A sysctl by its dotted name, or None where the kernel has none."""
    return namespaces.read_setting("/proc/sys/" + name.replace(".", "/"))
