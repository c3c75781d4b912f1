"""Where namespaces are refused the switch is named."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.emulate import probe, refusal

OPEN = {
    "kernel.unprivileged_userns_clone": "1",
    "user.max_user_namespaces": "63000",
    "user.max_net_namespaces": "63000",
    "kernel.apparmor_restrict_unprivileged_userns": "0",
}
REFUSED = "network namespaces: the kernel refuses this user a network namespace"


@pytest.mark.parametrize(
    ("code", "switches", "text"),
    [
        (
            errno.EPERM, {"kernel.unprivileged_userns_clone": "0"},
            f"{REFUSED} (EPERM): kernel.unprivileged_userns_clone is 0\n"
            "  hint: sudo sysctl kernel.unprivileged_userns_clone=1, or run as root",
        ),
        (
            errno.ENOSPC, {"user.max_user_namespaces": "0"},
            f"{REFUSED} (ENOSPC): user.max_user_namespaces is 0\n"
            "  hint: sudo sysctl user.max_user_namespaces=10000, or run as root",
        ),
        (
            errno.ENOSPC, {"user.max_net_namespaces": "0"},
            f"{REFUSED} (ENOSPC): user.max_net_namespaces is 0\n"
            "  hint: sudo sysctl user.max_net_namespaces=10000, or run as root",
        ),
        (
            errno.EACCES, {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            f"{REFUSED} (EACCES): kernel.apparmor_restrict_unprivileged_userns is 1\n"
            "  hint: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
        ),
        (
            errno.ENOSPC, {},
            f"{REFUSED} (ENOSPC): one of these limits is reached: user.max_user_namespaces = 63000, "
            "user.max_net_namespaces = 63000\n  hint: raise it with sysctl, or end other containers",
        ),
        (
            errno.EPERM, {},
            f"{REFUSED} (EPERM), and no sysctl of kernel.unprivileged_userns_clone, user.max_user_namespaces, "
            "user.max_net_namespaces, kernel.apparmor_restrict_unprivileged_userns forbids it: a container's seccomp "
            "filter does, most likely\n  hint: with docker add --cap-add SYS_ADMIN --cap-add NET_ADMIN "
            "--security-opt seccomp=unconfined, or run as root",
        ),
    ],
)
def test_the_message_names_the_switch(code: int, switches: dict[str, str], text: str) -> None:
    assert str(refusal.explain(code, OPEN | switches)) == text


def test_switches_that_the_kernel_lacks_are_not_blamed() -> None:
    assert "seccomp" in str(refusal.explain(errno.EPERM, dict.fromkeys(OPEN)))


def test_another_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(refusal.InputError, match="the wind tunnel needs Linux, this is darwin"):
        probe()


# Becomes an unprivileged user inside a user namespace of its own and forbids itself further ones: the switch
# is counted per namespace, so the machine's own value stays as it is.
FORBID = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if os.getuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
uid, gid = os.getuid(), os.getgid()
if libc.unshare(0x10000000):
    print("no user namespace"); sys.exit(3)
libc.prctl(4, 1, 0, 0, 0)
for path, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    fd = os.open("/proc/self/" + path, os.O_WRONLY); os.write(fd, text.encode()); os.close(fd)
fd = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY); os.write(fd, b"0"); os.close(fd)
os.execv(sys.argv[1], [sys.argv[1], "-c", "from isthmus.emulate import *\\n" + sys.argv[2]])
"""
REFUSED_HERE = """
from isthmus.errors import InputError
for attempt in (probe, lambda: open_tunnel({"a": 1}, []).__enter__()):
    try:
        attempt()
    except InputError as error:
        print(error)
"""


@pytest.mark.tunnel
def test_a_real_refusal_names_user_max_user_namespaces(anyones_python: str, anyones_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORBID, anyones_python, REFUSED_HERE], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": anyones_path},
    )
    if done.returncode == 3:
        pytest.skip("this user may not even make the namespace in which to be refused one")
    said = "network namespaces: the kernel refuses this user a network namespace (ENOSPC): user.max_user_namespaces is 0"
    hint = "  hint: sudo sysctl user.max_user_namespaces=10000, or run as root"
    assert done.stdout.splitlines() == [said, hint] * 2, done.stderr
    assert Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii").strip() != "0"
