"""Nothing stays: after a normal end, Ctrl-C, and kill -9 with `clean`, all is as before, by diff.

Each scenario runs in a sandbox (own pid, mount and network namespaces, fresh /proc, /run and temporary folder), so that
the diff sees everything and other work on the machine does not blur it. This file is also the program that
runs in there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from isthmus.emulate import clean, processes, state
from isthmus.errors import InputError

LAUNCHER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from isthmus.emulate import EmulatedLink, open_tunnel
link = EmulatedLink(between=("a", "b"), rate_bytes_per_s=12.5e6, rtt_s=0.018)
with open_tunnel({"a": 2, "b": 1}, [link]) as tunnel:
    (tunnel.folder / "results").write_text("x")
    # A rank that listens, ignores SIGTERM, and has a child in a session of its own.
    rank = '''
import signal, socket, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
listener = socket.create_server(("0.0.0.0", 5000)); print("ready", flush=True); time.sleep(1000)
'''
    ranks = [tunnel.start(r, n, [sys.executable, "-c", rank], stdout=subprocess.PIPE) for r, n in (("a", 0), ("a", 1), ("b", 0))]
    for rank in ranks:
        rank.stdout.readline()
    print("open", tunnel.line_pid, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(1000)
"""


# --- inside the sandbox
# -----------------------------------------------------------------------------------------------


def settings() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, _, names in os.walk("/proc/sys/net"):
        for name in names:
            path = Path(folder) / name
            try:
                found[str(path)] = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # write-only, or not ours to read: before and after alike
    return {name: value for name, value in found.items() if not name.endswith("nf_conntrack_count")}


def snapshot() -> dict[str, object]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    living = sorted(pid for pid in pids if processes.started_ticks(pid) is not None)
    spaces: set[str] = set()
    for pid in living:
        for kind in ("net", "user"):
            try:
                spaces.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    sockets = {
        kind: sorted(line.split()[1] for line in Path(f"/proc/net/{kind}").read_text(encoding="ascii").splitlines()[1:])
        for kind in ("tcp", "tcp6", "udp", "udp6", "packet", "raw") if Path(f"/proc/net/{kind}").exists()
    }
    named = Path("/run/netns")
    devices = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {
        "processes": living,
        "namespaces": sorted(spaces),
        "named namespaces": sorted(os.listdir(named)) if named.exists() else [],
        "devices": sorted(line.split(":")[0].strip() for line in devices),
        "mounts": len(Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()),
        "sockets": sockets,
        "sysctls": settings(),
        "temporary files": sorted(str(path) for path in Path(tempfile.gettempdir()).rglob("*")),
    }


def neighbour() -> tuple[subprocess.Popen[bytes], str]:
    """Another user's process in a network namespace of its own, that looks like our delay line."""
    as_other: dict[str, object] = {"user": 65533, "group": 65533, "extra_groups": []}
    command = ["unshare", "--user", "--net", "bash", "-c", "exec -a 'python -m isthmus.emulate.line 3' sleep 1000"]
    process = subprocess.Popen(command, **as_other)  # type: ignore[call-overload]
    time.sleep(0.3)
    return process, os.readlink(f"/proc/{process.pid}/ns/net")


def reap() -> None:
    """Collect orphans, whose parent we are in here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def kill(launcher: subprocess.Popen[bytes], line_pid: int, also_line: bool, before: dict[str, object]) -> dict[str, object]:
    """Kill -9 the launcher, and the delay line too where it shall not clean up after itself; then `clean`."""
    left_alone = clean()
    assert left_alone.runs == ()
    assert len(left_alone.living) == 1, "a run that lives must be left alone"
    if also_line:
        os.kill(line_pid, signal.SIGSTOP)
    os.kill(launcher.pid, signal.SIGKILL)
    if also_line:
        os.kill(line_pid, signal.SIGKILL)
    launcher.wait()
    time.sleep(0.3 if also_line else 3.0)
    reap()
    left, known = snapshot()["processes"], before["processes"]
    assert isinstance(left, list)
    assert isinstance(known, list)
    cleaned = clean()
    reap()
    assert clean() == state.Cleaned((), (), ()), "the second time there is nothing to do"
    return {"left before clean": len(set(left) - set(known)), "cleaned": [len(cleaned.runs), len(cleaned.processes)]}


def scenario(name: str) -> dict[str, object]:
    other = neighbour() if os.getuid() == 0 and name == "kill all" else None
    before = snapshot()
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "end" if name == "end" else "wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    line_pid = int(launcher.stdout.readline().split()[1])
    during = snapshot()
    found: dict[str, object] = {"during": {key: during[key] != before[key] for key in before}}
    if name == "interrupt":
        os.killpg(launcher.pid, signal.SIGINT)
    elif name.startswith("kill"):
        found |= kill(launcher, line_pid, name == "kill all", before)
    launcher.wait()
    deadline = time.monotonic() + 10
    while (after := snapshot()) != before and time.monotonic() < deadline:
        reap()
        time.sleep(0.1)
    found["differs"] = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    if other:
        found["neighbour"] = other[0].poll() is None and os.readlink(f"/proc/{other[0].pid}/ns/net") == other[1]
        other[0].kill()
    return found


# --- outside
# ----------------------------------------------------------------------------------------------------------


def sandboxed(name: str) -> dict[str, object]:
    if shutil.which("unshare") is None:
        pytest.skip("the sandbox needs unshare of util-linux")
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    inner = 'mount -t tmpfs none /run && mkdir /run/tmp && export TMPDIR=/run/tmp && exec "$@"'  # this checkout may be under /tmp
    command = ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount", "--net", "--mount-proc",
               "sh", "-c", inner, "sh", sys.executable, __file__, name]
    environment = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=environment)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no sandbox: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CHANGED_WHILE_OPEN = {"processes": True, "namespaces": True, "temporary files": True}


@pytest.mark.tunnel
@pytest.mark.parametrize("name", ["end", "interrupt"])
def test_all_is_as_before_after_a_normal_end_and_after_ctrl_c(name: str) -> None:
    found = sandboxed(name)
    assert found["differs"] == {}
    during = found["during"]
    assert isinstance(during, dict)
    assert {key: during[key] for key in CHANGED_WHILE_OPEN} == CHANGED_WHILE_OPEN, "the snapshot would see a tunnel"
    # Even while it is open the host's own network is untouched.
    assert not any(during[key] for key in ("devices", "sockets", "sysctls", "named namespaces", "mounts"))


@pytest.mark.tunnel
def test_after_kill_9_the_processes_go_by_themselves_and_clean_takes_the_folder() -> None:
    found = sandboxed("kill")
    assert found["left before clean"] == 0
    assert found["cleaned"] == [1, 0]
    assert found["differs"] == {}


@pytest.mark.tunnel
def test_after_kill_9_of_launcher_and_line_clean_ends_what_is_left_and_no_other_users_process() -> None:
    found = sandboxed("kill all")
    # The three ranks died with the launcher; their children, in sessions of their own, did not.
    assert found["left before clean"] == 3
    assert found["cleaned"] == [1, 3]
    assert found["differs"] == {}
    assert found.get("neighbour", True), "another user's namespace was touched"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"isthmus-{os.getuid()}"


def forged_run(temporary: Path, records: str) -> None:
    folder = temporary / "20260101-000000-1-abcdef"
    folder.mkdir(parents=True)
    (folder / "started").write_text(f"999999999 1\n{records}", encoding="ascii")
    (folder / "token").write_text("0" * 32, encoding="ascii")


def test_a_process_that_got_the_pid_of_a_dead_rank_is_not_ended(temporary: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ticks = processes.started_ticks(bystander.pid)
        assert ticks is not None
        forged_run(temporary, f"{bystander.pid} {ticks - 1}\n")
        cleaned = clean()
        assert (cleaned.processes, len(cleaned.runs)) == ((), 1)
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")
    assert not temporary.exists()


def test_a_process_that_was_written_down_is_ended(temporary: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = processes.started_ticks(rank.pid)
    forged_run(temporary, f"{rank.pid} {ticks}\n")
    assert clean().processes == (rank.pid,)
    rank.communicate()
    assert rank.returncode == -signal.SIGTERM


def test_records_that_are_no_records_are_no_reason_to_end_anything(temporary: Path) -> None:
    forged_run(temporary, f"-1 5\n{os.getpid()}\nall of them\n{os.getpid()} {2**70}\n")
    assert clean().processes == ()
    assert not temporary.exists()


def test_a_run_that_is_just_being_opened_is_left_alone_and_an_old_empty_folder_is_not(temporary: Path) -> None:
    folder = temporary / "20260101-000000-1-abcdef"
    folder.mkdir(parents=True)
    assert clean().living == (folder.name,)
    os.utime(folder, (0, 0))
    assert clean().runs == (folder.name,)
    assert not temporary.exists()


def test_a_folder_of_another_user_is_refused(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is not a folder of this user"):
        clean()
    with pytest.raises(InputError, match="is not a folder of this user"):
        state.open_run()


if __name__ == "__main__":
    print(json.dumps(scenario(sys.argv[1])))
