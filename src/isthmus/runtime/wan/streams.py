"""One TCP stream between two ranks: its socket options, whole reads and writes, and what the kernel knows about it.

`Stream` is the seam: in the clear (`PlainStream`, here) or inside TLS (`tls.TlsStream`).
"""

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

__all__ = ["BufferLimits", "Kernel", "PlainStream", "Stream", "buffer_limits", "congestion_available", "open_listener", "prepare"]

TCP_RTO_MAX_MS: Final = 44
SO_MAX_PACING_RATE: Final = 47
POLL_S: Final = 0.5
RTO_MS_MAX: Final = 3000
CHUNK_S: Final = 0.02
TUNE_S: Final = 0.1
CHUNK_BYTES_MIN: Final = 1 << 15
CHUNK_BYTES_FIRST: Final = 1 << 17
PIECE_S: Final = 0.001
PIECE_BYTES_MIN: Final = 1 << 14
PIECE_BYTES_MAX: Final = 1 << 18
_TIMEVAL = struct.Struct("ll")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What TCP_INFO tells about a stream; counts since it was opened.

    Attributes:
        rtt_s: Smoothed round trip.
        rtt_s_min: Smallest round trip of the last minutes.
        retransmits: Segments sent again.
        send_buffer_bytes, receive_buffer_bytes: What the buffers may hold now (the kernel tunes them by itself).
        busy_s: Time with something handed over and not acknowledged yet.
        buffer_limited_s: Time the sender was held back by its own send buffer.
        congestion: Name of the congestion control in force.
    """

    rtt_s: float
    rtt_s_min: float
    retransmits: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    busy_s: float
    buffer_limited_s: float
    congestion: str


class Stream(Protocol):
    """A byte stream to one peer, used by one sender thread and one receiver thread."""

    sent_at_s: float
    heard_at_s: float
    chunk_bytes: int
    piece_bytes: int

    def send(self, parts: Sequence[memoryview | bytes]) -> None:
        """Hand all `parts` to the kernel."""
        ...

    def receive(self, into: memoryview) -> int:
        """Fill `into`; fewer bytes only where the peer ended the stream."""
        ...

    def tune(self, chunk_bytes_max: int) -> None:
        """Fit `chunk_bytes` to what the stream delivers."""
        ...

    def fit_buffers(self, window_bytes: float) -> None:
        """Make room for `window_bytes` in flight."""
        ...

    def kernel(self) -> Kernel:
        """The kernel's figures."""
        ...

    def end(self) -> None:
        """Say that nothing more will be sent."""
        ...

    def close(self) -> None:
        """End it both ways; threads inside `send` and `receive` return or raise OSError."""
        ...

    def forget(self) -> None:
        """Give back what it holds beside its TCP connection, which stays its opener's."""
        ...

    def release(self) -> None:
        """Give the descriptor back, once its threads have ended."""
        ...


class PlainStream:
    """TCP in the clear.

    Both calls block in the kernel for a whole chunk (MSG_WAITALL), so Python runs once a chunk and not once a packet. The
    socket time-outs of `POLL_S` only let `sent_at_s` and `heard_at_s` show progress and a closing rail be noticed.

    Attributes:
        deadline_s: While a stream is being opened: the monotonic time after which `send` and `receive` raise TimeoutError.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._closed = False
        self.deadline_s: float | None = None
        self.sent_at_s = self.heard_at_s = time.monotonic()
        self.chunk_bytes, self.piece_bytes = CHUNK_BYTES_FIRST, PIECE_BYTES_MIN
        self._tuned_at_s = 0.0
        sock.setblocking(True)
        slice_ = _TIMEVAL.pack(int(POLL_S), int(POLL_S % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, slice_)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, slice_)

    def send(self, parts: Sequence[memoryview | bytes]) -> None:
        """Hand all `parts` to the kernel; returns when the buffers may be changed."""
        views = [memoryview(part) for part in parts if len(part)]
        while views:
            try:
                count = self._socket.sendmsg(views)
            except BlockingIOError:
                if self._closed:
                    raise OSError(errno.ESHUTDOWN, "the rail is closing") from None
                self._check_deadline()
                continue
            self.sent_at_s = time.monotonic()
            while views and count >= views[0].nbytes:
                count -= views.pop(0).nbytes
            if count:
                views[0] = views[0][count:]

    def receive(self, into: memoryview) -> int:
        """Fill `into` from the kernel; fewer bytes only at the end of the stream."""
        done = 0
        while done < into.nbytes:
            count = self.receive_some(into[done:], socket.MSG_WAITALL)
            if count == 0:
                return done
            done += count
        return done

    def receive_some(self, into: memoryview, flags: int = 0) -> int:
        """Put what the kernel has into `into`, waiting for some; 0 at the end of the stream."""
        while True:
            self._check_deadline()
            try:
                count = self._socket.recv_into(into, 0, flags)
            except BlockingIOError:
                if self._closed:
                    return 0
                continue
            self.heard_at_s = time.monotonic()
            return count

    def _check_deadline(self) -> None:
        if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
            raise TimeoutError("it said too little for too long")

    def tune(self, chunk_bytes_max: int) -> None:
        """Fit the chunk, and what the kernel may hold unsent, to `CHUNK_S` of what the stream delivers; called by its sender.

        So a fast stream costs few turns of Python, and a slow one never holds back the end of a message, or a small
        message behind it, for longer than twice that time. Towards the end of what waits chunks become smaller, but not
        below `piece_bytes`, `PIECE_S` of what the stream delivers.
        """
        now_s = time.monotonic()
        if now_s < self._tuned_at_s + TUNE_S:
            return
        self._tuned_at_s = now_s
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256).ljust(256, b"\0")
        (delivered_bytes_per_s,) = struct.unpack_from("=Q", info, 160)
        if delivered_bytes_per_s == 0:
            return
        self.chunk_bytes = min(max(int(delivered_bytes_per_s * CHUNK_S) & -4096, CHUNK_BYTES_MIN), chunk_bytes_max)
        piece = int(delivered_bytes_per_s * PIECE_S) & -4096
        self.piece_bytes = min(max(piece, PIECE_BYTES_MIN), PIECE_BYTES_MAX, self.chunk_bytes)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self.chunk_bytes)

    def fit_buffers(self, window_bytes: float) -> None:
        """Set the buffers where autotuning would end below twice `window_bytes` and the sockets' own cap lies higher.

        Setting a buffer ends its autotuning, so it is left alone where that reaches far enough by itself.
        """
        wanted, limits = int(2 * window_bytes), buffer_limits()
        for option, tuned, fixed in (
            (socket.SO_SNDBUF, limits.send_bytes_tuned, limits.send_bytes_fixed),
            (socket.SO_RCVBUF, limits.receive_bytes_tuned, limits.receive_bytes_fixed),
        ):
            if tuned < min(wanted, fixed):
                self._socket.setsockopt(socket.SOL_SOCKET, option, min(wanted, fixed) // 2)  # the kernel doubles it

    def prepare(self, congestion: str, timeout_s: float, pace_bytes_per_s: float | None) -> None:
        """Set the options of `prepare` on an accepted stream."""
        prepare(self._socket, congestion, timeout_s, pace_bytes_per_s)

    def duplicate(self) -> socket.socket:
        """Another descriptor of the same connection; raises OSError where that is broken already."""
        self._socket.getpeername()
        return self._socket.dup()

    def first_byte(self) -> bytes:
        """The first byte that the peer says, b"" where it ends the stream without a word; takes nothing from it."""
        while True:
            self._check_deadline()
            try:
                return self._socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                if self._closed:
                    return b""

    def alive(self) -> bool:
        """Whether the peer has not ended the stream, as far as the kernel knows; takes nothing from it."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def kernel(self) -> Kernel:
        """TCP_INFO and the buffer sizes; raises OSError on a closed socket."""
        sock = self._socket
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256).ljust(256, b"\0")
        words = struct.unpack_from("=24I", info, 8)
        (rtt_us_min,) = struct.unpack_from("=I", info, 148)
        busy_us, _, buffer_limited_us = struct.unpack_from("=3Q", info, 168)
        return Kernel(
            rtt_s=words[15] * 1e-6,
            rtt_s_min=rtt_us_min * 1e-6,
            retransmits=words[23],
            send_buffer_bytes=sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            receive_buffer_bytes=sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            busy_s=busy_us * 1e-6,
            buffer_limited_s=buffer_limited_us * 1e-6,
            congestion=sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode(),
        )

    def end(self) -> None:
        """Say that nothing more will be sent; reading goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Shut both ways, which wakes the threads inside."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Nothing: there is only the connection."""

    def release(self) -> None:
        """Give the descriptor back, once its threads have ended."""
        self._socket.close()


def prepare(sock: socket.socket, congestion: str, timeout_s: float, pace_bytes_per_s: float | None) -> None:
    """Set a stream's options, before it connects or right after it was accepted.

    Buffers are left to the kernel's autotuning: a fixed size would switch it off, and is capped far lower than what
    autotuning may reach. TCP_NOTSENT_LOWAT keeps what the kernel holds beyond the congestion window small, so that a small
    message of another tag does not stand behind megabytes. The retransmission time is capped (Linux >= 6.15) so that a
    stream resumes within seconds after an outage.

    Args:
        sock: Not connected yet, or just accepted.
        congestion: Name of a congestion control; "" leaves the route's or the system's.
        timeout_s: Unanswered data for so long ends the connection.
        pace_bytes_per_s: Payload that is never exceeded, so that streams which share a link of known rate neither overflow
            its queue nor push each other aside; None leaves it to the congestion control.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(timeout_s / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(timeout_s / 6)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, CHUNK_BYTES_FIRST)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RTO_MS_MAX)
    if pace_bytes_per_s is not None:
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", int(pace_bytes_per_s)))
    if congestion:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """The most that this kernel gives a socket's buffers, by itself (`tuned`) or when asked (`fixed`)."""

    send_bytes_tuned: int
    receive_bytes_tuned: int
    send_bytes_fixed: int
    receive_bytes_fixed: int

    @property
    def window_bytes(self) -> int:
        """What one stream can keep in flight: half a buffer, the rest is the kernel's own book-keeping."""
        sending = max(self.send_bytes_tuned, self.send_bytes_fixed)
        return min(sending, max(self.receive_bytes_tuned, self.receive_bytes_fixed)) // 2


@cache
def buffer_limits() -> BufferLimits:
    """The limits of this network namespace (net.ipv4.tcp_wmem, tcp_rmem; net.core.wmem_max, rmem_max), read once."""

    def limit(name: str) -> int:
        return int(Path("/proc/sys/net", name).read_text().split()[-1])

    tuned_send, tuned_receive = limit("ipv4/tcp_wmem"), limit("ipv4/tcp_rmem")
    fixed = [2 * limit(f"core/{name}") if Path("/proc/sys/net/core", name).exists() else 0 for name in ("wmem_max", "rmem_max")]
    return BufferLimits(
        send_bytes_tuned=tuned_send,
        receive_bytes_tuned=tuned_receive,
        send_bytes_fixed=fixed[0],
        receive_bytes_fixed=fixed[1],
    )


def congestion_available(name: str) -> bool:
    """Whether this process may choose the congestion control `name` here and now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            return False
    return True


def open_listener(host: str, port: int, backlog: int) -> socket.socket:
    """Listen on that one address and no other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock
