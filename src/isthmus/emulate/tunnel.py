"""Open a tunnel: nodes to start programs in, links that can be changed while they run, counters to read."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from isthmus.emulate import control, processes, refusal, state
from isthmus.emulate.network import TcpSettings, node_address
from isthmus.emulate.topology import WHERE, EmulatedLink, LinkChange, check, check_link, next_hops, settings_of, shown
from isthmus.errors import InputError, nearest

__all__ = ["LineCounters", "LinkCounters", "StartOptions", "Tunnel", "open_tunnel"]

_GRACE_S = 2.0  # from SIGTERM to SIGKILL, for all programs together


class StartOptions(TypedDict, total=False):
    """How a program starts: as in `subprocess.Popen`; `measuring` puts it above the ranks and below the delay line."""

    env: Mapping[str, str] | None
    stdin: Any
    stdout: Any
    stderr: Any
    cwd: str | os.PathLike[str] | None
    measuring: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """One direction since the tunnel opened, in wire packets and IP bytes.

    Attributes:
        packets: Taken by the queue; lost ones are among them, those dropped by the queue are not.
        wire_bytes: Of `packets`.
        dropped_queue: Refused by the full queue.
        dropped_loss: Lost at random.
        dropped_down: Lost because the link was down.
        queue_bytes_max: The most that waited since the link was last changed.
        late_p99_s: 99 of 100 frames left at most this late; beyond a few per cent of the RTT the run is not
            to be trusted.
    """

    packets: int
    wire_bytes: int
    dropped_queue: int
    dropped_loss: int
    dropped_down: int
    queue_bytes_max: float
    late_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCounters:
    """The delay line itself since the tunnel opened; `port_drops` and `write_errors` are frames it failed to carry."""

    cpu_s: float
    port_drops: int
    write_errors: int


class Tunnel:
    """An open tunnel; `open_tunnel` makes it and takes it down.

    Attributes:
        congestion: TCP congestion control of the routes across the WAN.
        fifo: The delay line runs before everything else; where False, ranks run after everything else
            instead.
        rootless: A user namespace was needed.
        line_pid: The delay line's process.
        folder: Temporary files put here go with the tunnel, also by `clean` after a kill.
    """

    def __init__(self, regions: Mapping[str, int], links: Sequence[EmulatedLink], run: state.Run) -> None:
        self._regions = dict(regions)
        self._order = {name: number for number, name in enumerate(regions)}
        self._links: dict[tuple[str, str], EmulatedLink] = {}
        for link in links:
            src, dst = link.between
            self._links[src, dst] = self._links[dst, src] = link
        self._run, self.folder = run, run.folder
        self._lock = threading.Lock()
        self._ranks: list[subprocess.Popen[Any]] = []
        # A process group of their own keeps Ctrl-C from them, and the common session keeps them in one scheduling group
        # (autogroup), without which SCHED_IDLE ranks would be the delay line's equals.
        # Children die with the thread that made them (PR_SET_PDEATHSIG), so one thread that lasts makes them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="isthmus-start")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "isthmus.emulate.line", str(theirs.fileno())]
        environment = control.own_packages(dict(os.environ)) | {processes.TOKEN: run.token}
        self._line = self._on_starter(
            lambda: subprocess.Popen(
                command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0
            )
        )
        theirs.close()
        self.line_pid = self._line.pid
        run.started(self.line_pid)
        self._user_fd: int | None = None
        self._node_fds: dict[tuple[str, int], int] = {}
        self.congestion, self.fifo, self.rootless = "", False, False

    def address(self, region: str, node: int) -> str:
        """IPv4 address of a node, on its interface eth0."""
        self._check_node(region, node)
        return node_address(self._order[region], node)

    def start(self, region: str, node: int, argv: Sequence[str], **options: Unpack[StartOptions]) -> subprocess.Popen[Any]:
        """Start a program in a node. It runs below the delay line, in its own process group, and dies with this process.

        Where the program cannot be run the process says so on its stderr and exits with 127.

        Raises:
            InputError: There is no such node.
        """
        user, net, policy = self.entry(region, node)
        if options.get("measuring"):
            policy = "fifo" if self.fifo else "normal"
        enter = str(Path(__file__).with_name("enter.py"))
        command = [
            sys.executable, "-I", "-S", enter, str(os.getpid()), "-" if user is None else str(user), str(net), policy,
            "--", *argv,
        ]
        given = options.get("env")
        environment = dict(os.environ if given is None else given) | {processes.TOKEN: self._run.token}
        process = self._on_starter(
            lambda: subprocess.Popen(
                command, env=environment, cwd=options.get("cwd"), stdin=options.get("stdin", subprocess.DEVNULL),
                stdout=options.get("stdout"), stderr=options.get("stderr"), process_group=0,
                pass_fds=(net,) if user is None else (net, user),
            )
        )
        self._run.started(process.pid)
        self._ranks.append(process)
        return process

    def entry(self, region: str, node: int) -> tuple[int | None, int, str]:
        """What a process that forks itself enters a node with, by `enter.enter`: descriptors of the user namespace (None: none
        is needed) and of the network namespace, which stay the tunnel's, and the scheduling policy of a rank.

        Raises:
            InputError: There is no such node.
        """
        self._check_node(region, node)
        return self._user_fd, self._node_fds[region, node], "normal" if self.fifo else "idle"

    def set_link(self, src: str, dst: str, *, both: bool = True, **change: Unpack[LinkChange]) -> None:
        """Change the link from `src` to `dst`, and back unless `both` is False, while packets are on it.

        Raises:
            InputError: There is no such link, or a value no link can have.
        """
        if (src, dst) not in self._links:
            raise InputError(WHERE, f"no link joins {src!r} and {dst!r}", f"links: {shown(self._links)}")
        for ends in ((src, dst), (dst, src))[: 1 + both]:
            link = replace(self._links[ends], **change)
            check_link(link, self._regions)
            self._links[ends] = link
            self._ask({"do": "set", "src": self._order[ends[0]], "dst": self._order[ends[1]], "settings": settings_of(link)})

    def links(self) -> list[tuple[str, str]]:
        """Both directions of every link."""
        return list(self._links)

    def link(self, src: str, dst: str) -> EmulatedLink:
        """The link from `src` to `dst` as it is now.

        Raises:
            InputError: There is no such link.
        """
        if (src, dst) not in self._links:
            raise InputError(WHERE, f"no link joins {src!r} and {dst!r}", f"links: {shown(self._links)}")
        return self._links[src, dst]

    def counters(self) -> dict[tuple[str, str], LinkCounters]:
        """Counters of every direction, by (from, to)."""
        names = list(self._order)
        found: dict[tuple[str, str], LinkCounters] = {}
        answer: list[dict[str, Any]] = self._ask({"do": "counters"})["links"]
        for each in answer:
            src, dst = int(each.pop("src")), int(each.pop("dst"))
            found[names[src], names[dst]] = LinkCounters(**each)
        return found

    def line(self) -> LineCounters:
        """Counters of the delay line itself."""
        answer = self._ask({"do": "counters"})
        return LineCounters(**{name: answer[name] for name in LineCounters.__slots__})

    def open(self, setup: dict[str, Any]) -> None:
        """Have the delay line build the network; part of `open_tunnel`."""
        answer = self._ask(setup)
        if "refused" in answer:
            switches = {name: refusal.setting(name) for name in refusal.SWITCHES}
            raise refusal.explain(answer["refused"], switches)
        if "error" in answer:
            raise InputError(WHERE, answer["error"])
        descriptors = control.receive_descriptors(self._channel, answer["descriptors"])
        self.congestion, self.fifo, self.rootless = answer["congestion"], answer["fifo"], answer["user"]
        if self.rootless:
            self._user_fd = descriptors.pop(0)
        names = [(name, node) for name, count in self._regions.items() for node in range(count)]
        self._node_fds = dict(zip(names, descriptors, strict=True))

    def close(self) -> None:
        """End all programs, the delay line and with them the network; part of `open_tunnel`."""
        for process in self._ranks:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for process in self._ranks:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._channel.close()  # the line reads the end of the stream and ends what else lives in the nodes
        try:
            self._line.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._line.kill()
            self._line.wait()
        for fd in (*self._node_fds.values(), *filter(None, [self._user_fd])):
            os.close(fd)
        self._starter.shutdown()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                return control.ask(self._channel, request)
            except EOFError:
                code = self._line.wait()
                raise RuntimeError(f"the delay line ended by itself (exit status {code}); see its message above") from None

    def _on_starter(self, make: Callable[[], subprocess.Popen[Any]]) -> subprocess.Popen[Any]:
        return self._starter.submit(make).result()

    def _check_node(self, region: str, node: int) -> None:
        if region not in self._regions:
            raise InputError(WHERE, f"no region is called {region!r}", nearest(region, self._regions))
        if not 0 <= node < self._regions[region]:
            raise InputError(WHERE, f"{region} has no node {node}", f"its nodes are 0 to {self._regions[region] - 1}")


@contextmanager
def open_tunnel(
    nodes: Mapping[str, int], links: Sequence[EmulatedLink], tcp: TcpSettings | None = None, seed: int | None = None
) -> Generator[Tunnel]:
    """Build nodes and links, lend the tunnel, and take everything down again, whatever happens inside.

    Args:
        nodes: Region name -> number of nodes.
        links: At most one a pair of regions. Regions without a link of their own reach each other over the
            others', by the smallest RTT.
        tcp: TCP inside the nodes.
        seed: Of losses and jitter; None draws one.

    Raises:
        InputError: A link or region that cannot be; this is not Linux; the kernel refuses namespaces (the
            switch that forbids it is named); the congestion control asked for does not exist.
    """
    check(nodes, links)
    if sys.platform != "linux":
        refusal.probe()
    order = {name: number for number, name in enumerate(nodes)}
    directed = [(ends, link) for link in links for ends in (link.between, link.between[::-1])]
    setup = {
        "nodes": list(nodes.values()),
        "tcp": {name: getattr(tcp or TcpSettings(), name) for name in TcpSettings.__slots__},
        "links": [{"src": order[src], "dst": order[dst], "settings": settings_of(link)} for (src, dst), link in directed],
        "hops": next_hops(len(nodes), {(order[src], order[dst]): link.rtt_s for (src, dst), link in directed}),
        "seed": random.SystemRandom().getrandbits(48) if seed is None else seed,
    }
    run = state.open_run()
    try:
        tunnel = Tunnel(nodes, links, run)
        try:
            tunnel.open(setup)
            yield tunnel
        finally:
            tunnel.close()
    finally:
        run.remove()
