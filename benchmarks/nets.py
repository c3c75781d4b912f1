"""Where the ranks of a benchmark run, and bare TCP between them: what any program could do there, whatever it is."""

import contextlib
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

PACING = 47  # SO_MAX_PACING_RATE


class TunnelNet:
    """Where the ranks run: nodes of a wind tunnel."""

    interface = "eth0"

    def __init__(self, tunnel: Any, regions: dict[str, int]) -> None:
        self._tunnel, self.regions, self.folder = tunnel, regions, Path(tunnel.folder)
        self.master = f"{tunnel.address(next(iter(regions)), 0)}:29400"

    def rail(self, region: str, node: int, shift: int) -> str:
        return f"{self._tunnel.address(region, node)}:{29600 + shift}"

    def start(self, region: str, node: int, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        return self._tunnel.start(region, node, argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class LoopbackNet:
    """Where the ranks run: this machine, over 127.0.0.1."""

    interface = "lo"

    def __init__(self, folder: Path, regions: dict[str, int]) -> None:
        self.folder, self.regions = folder, regions
        with contextlib.ExitStack() as stack:
            count = 3 * sum(regions.values()) + 1
            ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]
        self.master, self._ports = f"127.0.0.1:{ports.pop()}", ports

    def rail(self, region: str, node: int, shift: int) -> str:
        number = sum(count for name, count in self.regions.items() if name < region) + node
        return f"127.0.0.1:{self._ports[3 * number + shift]}"

    def start(self, region: str, node: int, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class BareTcp:
    """The same number of TCP connections to the peer, the same pace, and nothing else: no frames, no checksums, no sum."""

    def __init__(self, own: tuple[str, int], peer: tuple[str, int], streams: int, *, calls: bool, pace: float | None) -> None:
        if calls:
            self._sockets = [self._call(peer) for _ in range(streams)]
        else:
            with socket.create_server(own) as listener:
                self._sockets = [listener.accept()[0] for _ in range(streams)]
        for sock in self._sockets:
            sock.settimeout(None)
            if pace is not None:
                sock.setsockopt(socket.SOL_SOCKET, PACING, struct.pack("=Q", int(pace)))
        self._memory = bytearray(0)

    @classmethod
    def between(cls, members: Any, place: Any, streams: int, rate: float | None) -> "BareTcp":
        """For this rank of two regions; `rate` is its share of the link's, in IP bytes/s."""
        from isthmus.runtime.environment import split_address
        from isthmus.runtime.wan.rail import PACE, PAYLOAD

        region = place.region_index
        own, peer = (split_address(members.regions[number].rails[place.rank]) for number in (region, 1 - region))
        pace = None if rate is None else PACE * rate * PAYLOAD / streams
        return cls(own, peer, streams, calls=region == 1, pace=pace)

    @staticmethod
    def _call(peer: tuple[str, int]) -> socket.socket:
        for _ in range(600):
            with contextlib.suppress(OSError):
                return socket.create_connection(peer, 30)
            time.sleep(0.05)
        raise SystemExit(f"nobody listens at {peer}")

    def swap(self, size: int) -> None:
        """Send `size` bytes and receive as many, split over the connections."""
        if len(self._memory) != 2 * size:
            self._memory = bytearray(2 * size)
        share, threads = -(-size // len(self._sockets)), []
        for number, sock in enumerate(self._sockets):
            low, high = number * share, min((number + 1) * share, size)
            view = memoryview(self._memory)
            for work in (self._send, self._receive):
                part = view[low:high] if work == self._send else view[size + low : size + high]
                threads.append(threading.Thread(target=work, args=(sock, part)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _send(sock: socket.socket, part: memoryview) -> None:
        sock.sendall(part)

    @staticmethod
    def _receive(sock: socket.socket, part: memoryview) -> None:
        while part.nbytes:
            count = sock.recv_into(part, 0, socket.MSG_WAITALL)
            if not count:
                raise SystemExit("the peer ended bare TCP early")
            part = part[count:]
