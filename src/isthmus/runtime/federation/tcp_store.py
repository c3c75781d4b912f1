"""The client of `isthmus coordinator`: calls over one connection a thread at a time, made anew whenever it breaks."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

from isthmus.runtime.federation.coordinator import FRAME_BYTES_MAX, LENGTH
from isthmus.runtime.federation.store import Entry, Listing, StoreLostError, StoreRefusedError

__all__ = ["TcpStore"]

COORDINATOR = "isthmus://coordinator"
RETRY_S = 0.05
CALL_S_MAX = 5.0


class TcpStore:
    """A `Store` at one address.

    A call whose connection breaks is made again on a new one, for `patience_s` in all; see `Store.txn` for what that means.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None, *, patience_s: float = 10.0) -> None:
        self.address, self.patience_s = address, patience_s
        self._tls = tls
        self._free: list[socket.socket] = []
        self._all: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._closed = False

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        found = self._call({"do": "get", "key": key})["entry"]
        return Entry(*found) if found else None

    def list(self, prefix: str) -> Listing:
        """See `Store.list`."""
        return _listing(self._call({"do": "list", "prefix": prefix}))

    def txn(self, compares: Mapping[str, int], puts: Mapping[str, str], deletes: tuple[str, ...] = (), *, lease: int = 0) -> bool:
        """See `Store.txn`."""
        request = {"do": "txn", "compares": dict(compares), "puts": dict(puts), "deletes": list(deletes), "lease": lease}
        return bool(self._call(request)["done"])

    def grant(self, ttl_s: float) -> int:
        """See `Store.grant`."""
        return int(self._call({"do": "grant", "ttl_s": ttl_s})["lease"])

    def keep_alive(self, lease: int) -> bool:
        """See `Store.keep_alive`."""
        return bool(self._call({"do": "keep", "lease": lease})["alive"])

    def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        self._call({"do": "revoke", "lease": lease})

    def watch(self, prefix: str, after: int, timeout_s: float) -> Listing | None:
        """See `Store.watch`."""
        answer = self._call({"do": "watch", "prefix": prefix, "after": after, "timeout_s": timeout_s}, timeout_s)
        return None if answer["entries"] is None else _listing(answer)

    def close(self) -> None:
        """See `Store.close`."""
        with self._guard:
            self._closed = True
            sockets, self._all = list(self._all), set()
            self._free.clear()
        for sock in sockets:
            # Shut down first: another thread may be reading, and closing alone would not wake it.
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            finally:
                sock.close()

    def _call(self, request: dict[str, Any], longer_s: float = 0.0) -> dict[str, Any]:
        body = json.dumps(request, separators=(",", ":")).encode()
        if len(body) > FRAME_BYTES_MAX:
            raise StoreRefusedError(f"{self._name()}: a request of {len(body)} bytes; {FRAME_BYTES_MAX} are allowed")
        deadline_s, last = time.monotonic() + self.patience_s, "closed"
        while not self._closed:
            sock: socket.socket | None = None
            try:
                sock = self._connection(deadline_s)
                sock.settimeout(min(CALL_S_MAX, max(0.1, self.patience_s)) + longer_s)
                sock.sendall(LENGTH.pack(len(body)) + body)
                answer = _receive(sock)
            except (OSError, EOFError, ValueError) as error:
                last = str(error) or type(error).__name__
                if sock is not None:
                    self._drop(sock)
                if time.monotonic() + RETRY_S >= deadline_s:
                    break
                time.sleep(RETRY_S)
                continue
            with self._guard:
                self._free.append(sock)
            return self._accepted(answer)
        raise StoreLostError(f"{self._name()} did not answer within {self.patience_s:g} s ({last})")

    def _accepted(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "refused" in answer:
            raise StoreRefusedError(f"{self._name()}: {answer['refused']}")
        if "broken" in answer:
            raise StoreLostError(f"{self._name()}: {answer['broken']}")
        return answer

    def _connection(self, deadline_s: float) -> socket.socket:
        with self._guard:
            if self._free:
                return self._free.pop()
        sock = socket.create_connection(self.address, max(0.1, min(CALL_S_MAX, deadline_s - time.monotonic())))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = _inside_tls(sock, self._tls)
        except BaseException:
            sock.close()
            raise
        with self._guard:
            if not self._closed:
                self._all.add(sock)
                return sock
        sock.close()
        raise EOFError("the store was closed")

    def _drop(self, sock: socket.socket) -> None:
        with self._guard:
            self._all.discard(sock)
            # A server that went away took the idle connections with it.
            idle, self._free = self._free, []
            self._all.difference_update(idle)
        for old in (sock, *idle):
            old.close()

    def _name(self) -> str:
        return f"the store at {self.address[0]}:{self.address[1]}"


def _inside_tls(sock: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = tls.wrap_socket(sock)
    names = list(dict(wrapped.getpeercert() or {}).get("subjectAltName", ()))
    if ("URI", COORDINATOR) not in names:
        wrapped.close()
        raise ssl.SSLCertVerificationError(f"the server holds a certificate of {names or 'nobody'}, not of the coordinator")
    return wrapped


def _receive(sock: socket.socket) -> dict[str, Any]:
    (size,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if size > 8 * FRAME_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes")
    return json.loads(_exactly(sock, size))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError("the server closed the connection")
        data += piece
    return bytes(data)


def _listing(answer: dict[str, Any]) -> Listing:
    return Listing(answer["revision"], {key: Entry(*found) for key, found in answer["entries"].items()})
