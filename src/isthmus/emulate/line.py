"""The delay line: one process that owns the tunnel's namespaces and carries every packet between regions.

Started by the launcher as `python -m isthmus.emulate.line CONTROL_FD`. It ends, and ends all that lives in
its namespaces, when the launcher says so or is gone. Its accuracy is a matter of scheduling: it runs
SCHED_FIFO where it may, and otherwise the ranks run SCHED_IDLE.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

from isthmus.emulate import control, namespaces, processes
from isthmus.emulate.link import DirectedLink
from isthmus.emulate.network import Network, TcpSettings, build, port_drops
from isthmus.emulate.packet import HEAD, MAX_FRAME, REGION_AT

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_FIFO_PRIORITY = 20
_LEAD_NS_MAX = 400_000
_BATCH = 16  # frames read from one port before due frames are looked at again


class Line:
    """Ports, links and next hops; `run` moves packets until the launcher is gone."""

    def __init__(self, network: Network, setup: dict[str, Any]) -> None:
        self.network = network
        self.ports = [port.fileno() for port in network.ports]
        self.links: dict[tuple[int, int], DirectedLink] = {}
        for number, link in enumerate(setup["links"]):
            settings = control.settings_from(link["settings"])
            self.links[link["src"], link["dst"]] = DirectedLink(settings, setup["seed"] + number)
        self.ends = [(link, dst, self.ports[dst]) for (_, dst), link in self.links.items()]
        # hops[i] maps the region octet of a destination to the link that leads there from region i.
        self.hops = [
            {dst: self.links[src, via] for dst, via in enumerate(row) if via is not None}
            for src, row in enumerate(setup["hops"])
        ]
        self.drops = [0] * len(self.ports)
        self.write_errors = 0

    def run(self, channel: socket.socket) -> None:
        """Carry packets and answer requests."""
        source = {fd: number for number, fd in enumerate(self.ports)}
        watched, control_fd = [*self.ports, channel.fileno()], channel.fileno()
        now_ns, wait = time.monotonic_ns, select.select
        lead = 0
        while True:
            next_ns = self._release_due()
            # A sleep ends late by what this machine's timers take to wake us, so it is asked to end that much before;
            # the rest of the wait is spent awake.
            sleep = next_ns - now_ns() - lead
            ready = wait(watched, (), (), max(sleep, 0) * 1e-9 if next_ns else None)[0]
            if next_ns and sleep > 0 and not ready:
                lead += (min(now_ns() - next_ns + lead, _LEAD_NS_MAX) - lead) >> 4
            for fd in ready:
                if fd != control_fd:
                    self._read(source[fd], fd)
                elif not self._answer(channel):
                    return

    def _release_due(self) -> int:
        """Hand over all that is due; returns when the next frame will be, 0 where nothing waits."""
        next_ns, now_ns = 0, time.monotonic_ns
        now = now_ns()
        for link, dst, port in self.ends:
            waiting = link.waiting
            if not waiting:
                continue
            if waiting[0][0] <= now:
                if self._release(link, dst, port):
                    next_ns = now  # the link it went to may have been looked at already: look again at once
                now = now_ns()
            if waiting and (not next_ns or waiting[0][0] < next_ns):
                next_ns = waiting[0][0]
        return next_ns

    def _release(self, link: DirectedLink, dst: int, port: int) -> bool:
        """Hand over what is due to the router at the link's end, or to the next link where the end is only on the way.

        True when a frame went to another link.
        """
        waiting, now_ns, write, passed_on = link.waiting, time.monotonic_ns, os.write, False
        now = now_ns()
        while waiting and waiting[0][0] <= now:
            due, frame = waiting.popleft()
            link.late(now - due)
            if frame[REGION_AT] == dst:
                try:
                    write(port, frame)
                except OSError:
                    self.write_errors += 1
            elif onward := self.hops[dst].get(frame[REGION_AT]):
                onward.offer(frame, due)
                passed_on = True
            now = now_ns()
        return passed_on

    def _read(self, region: int, fd: int) -> None:
        hops, now_ns, read = self.hops[region], time.monotonic_ns, os.read
        for _ in range(_BATCH):
            try:
                frame = read(fd, MAX_FRAME)
            except BlockingIOError:
                return
            if len(frame) >= HEAD + 20 and frame[HEAD] >> 4 == 4 and (link := hops.get(frame[REGION_AT])):
                link.offer(frame, now_ns())

    def _answer(self, channel: socket.socket) -> bool:
        request = control.receive(channel)
        if request is None or request["do"] == "close":
            return False
        if request["do"] == "set":
            link = self.links[request["src"], request["dst"]]
            link.set(control.settings_from(request["settings"]), time.monotonic_ns())
        control.send(channel, self._counters() if request["do"] == "counters" else {})
        return True

    def _counters(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        for number, port in enumerate(self.network.ports):
            self.drops[number] += port_drops(port)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "port_drops": sum(self.drops),
            "write_errors": self.write_errors,
            "links": [
                {
                    "src": src, "dst": dst, "packets": link.packets, "wire_bytes": link.wire_bytes,
                    "dropped_queue": link.dropped_queue, "dropped_loss": link.dropped_loss,
                    "dropped_down": link.dropped_down, "queue_bytes_max": link.queue_bytes_max,
                    "late_p99_s": link.late_p99_s(),
                }
                for (src, dst), link in self.links.items()
            ],
        }


def main(control_fd: int) -> int:
    """Set up what the launcher asks for, carry packets, take everything down."""
    channel = socket.socket(fileno=control_fd)
    setup = control.receive(channel)
    if setup is None:
        return 0
    try:
        needed_user = namespaces.become_owner()
        network = build(tuple(setup["nodes"]), TcpSettings(**setup["tcp"]))
    except OSError as error:
        control.send(channel, {"refused": error.errno, "error": str(error)})
        return 1
    except ValueError as error:
        control.send(channel, {"error": str(error)})
        return 1
    line = Line(network, setup)
    libc = ctypes.CDLL(None)

    def launcher_died(_number: int, _frame: FrameType | None) -> None:
        channel.shutdown(socket.SHUT_RDWR)  # `run` reads the end of the stream, also where another holds the far end

    signal.signal(signal.SIGTERM, launcher_died)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # only now: entering a user namespace clears it
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    nodes = tuple(fd for row in network.node_fds for fd in row)
    user = (namespaces.open_user(),) if needed_user else ()
    answer = {"user": needed_user, "fifo": _rise(), "congestion": network.congestion, "descriptors": len(user + nodes)}
    try:
        control.send(channel, answer, user + nodes)
    except BrokenPipeError:  # the launcher died while we built
        return 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        line.run(channel)
    finally:
        everywhere = (*nodes, *network.router_fds)
        processes.end(lambda: processes.living_in(everywhere), grace_s=1.0)
    return 0


def _rise() -> bool:
    """Run before everything else on the machine; False where this process may not."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    except PermissionError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
