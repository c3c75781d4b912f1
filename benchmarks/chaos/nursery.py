"""A process that has torch loaded and forks ranks (and their proxies) from itself, where asked into nodes of a tunnel.

So a region that is killed is back after a fork, not after seconds of imports on a machine that others train on meanwhile; what is
forked is a process of its own in every other respect. `Nursery` is the harness's side (tests use it too); run as a script
it is the other one: a JSON order and a node's descriptors come in, {"pid"} and later {"pid", "code"} go out, one message each.
"""

import ctypes
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from isthmus.emulate import Tunnel
from isthmus.emulate.enter import enter

__all__ = ["Child", "Nursery", "Order"]

MESSAGE_BYTES = 1 << 17
CODECS = ("int8", "int4")
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a child is to do.

    Attributes:
        argv: What follows `python` on a command line: a file or `-m` and a module, then its arguments. Empty: see `call`.
        call: "module:function", called with `arguments`, which are JSON.
        environment: All of it.
        log: Its output is appended to that file.
    """

    log: str
    argv: tuple[str, ...] = ()
    call: str = ""
    arguments: tuple[Any, ...] = ()
    environment: dict[str, str]


class Child:
    """One forked process, as `subprocess.Popen` would show it."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery, self.pid, self.returncode = nursery, pid, None
        self._descriptor = os.pidfd_open(pid)  # a zombie until its parent has told us of its end, so still this one

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self._nursery.listen(0.0)
            self.returncode = self._nursery.codes.pop(self.pid, None)
            if self.returncode is not None:
                os.close(self._descriptor)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 1e9) -> int:
        """Until it has ended.

        Raises:
            TimeoutExpired: It has not, after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"child {self.pid}", timeout)
            self._nursery.listen(min(1.0, timeout))
        assert self.returncode is not None
        return self.returncode


class Nursery:
    """Starts children; to be closed. `preload`: "module:function" to call before the first fork."""

    def __init__(self, *preload: str) -> None:
        self.codes: dict[int, int] = {}
        self._started: list[int] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno()), *preload]
        self._process = subprocess.Popen(command, env=environment, pass_fds=(theirs.fileno(),), process_group=0)
        theirs.close()

    def start(self, order: Order, tunnel: Tunnel | None = None, place: tuple[str, int] = ("", 0)) -> Child:
        """Fork a process, into node `place` of a tunnel where there is one."""
        if tunnel is None:
            self._socket.send(json.dumps(asdict(order)).encode())
        else:
            user, net, policy = tunnel.entry(*place)
            descriptors = [net] if user is None else [net, user]
            socket.send_fds(self._socket, [json.dumps(asdict(order) | {"policy": policy}).encode()], descriptors)
        while not self._started:
            self.listen(60.0)
        return Child(self, self._started.pop(0))

    def listen(self, timeout_s: float) -> None:
        """Take in what the other side has said, waiting so long for a first word.

        Raises:
            RuntimeError: It has ended.
        """
        while select.select([self._socket], [], [], timeout_s)[0]:
            data, timeout_s = self._socket.recv(MESSAGE_BYTES), 0.0
            if not data:
                raise RuntimeError(f"the nursery ended by itself (exit status {self._process.wait()})")
            said = json.loads(data)
            if "code" in said:
                self.codes[said["pid"]] = said["code"]
            else:
                self._started.append(said["pid"])

    def close(self) -> None:
        """End it, and whatever it has started."""
        self._socket.close()
        self._process.wait()


def serve(channel: socket.socket) -> None:
    """Fork and reap until the harness has gone."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            reap(channel)
        if channel in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
            if not data:
                return
            order, parent = json.loads(data), os.getpid()
            pid = os.fork()
            if pid == 0:
                channel.close()
                live(order, descriptors, parent)
            for each in descriptors:
                os.close(each)
            channel.send(json.dumps({"pid": pid}).encode())


def reap(channel: socket.socket) -> None:
    """Tell of all that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def live(order: dict[str, Any], descriptors: list[int], parent: int) -> None:
    """A child's whole life. It ends when its threads have, like any program; taking torch apart is left out."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(order["environment"])
        random.seed()
        net, *user = descriptors or [-1]
        if descriptors:
            enter(parent, user[0] if user else None, net, order["policy"])
        else:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            run(order)
            code = 0
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(order: dict[str, Any]) -> None:
    """What the child is for."""
    if order["call"]:
        named(order["call"])(*order["arguments"])
        return
    first, *rest = order["argv"]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


def named(text: str) -> Any:
    """The function that "module:function" means."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def load(preload: list[str]) -> None:
    """All that children would load or compile otherwise, before the first fork; no thread may be left behind."""
    import torch

    import isthmus.runtime.cluster  # noqa: F401
    from isthmus.runtime.codecs.coding import warm

    torch.set_num_threads(1)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # loads torch's compiler
    for codec in CODECS:
        warm(codec)  # pyright: ignore[reportArgumentType]
    for text in preload:
        named(text)()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        load(sys.argv[2:])
        serve(given)
    os._exit(0)
