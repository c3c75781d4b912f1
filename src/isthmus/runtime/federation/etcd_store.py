"""The store on etcd, through the JSON gateway of its v3 interface: plain HTTP requests, no client library.

Any member answers; a call that a member does not answer, or that finds it without a leader, goes to the next one. Leases have
whole seconds there, and etcd keeps none shorter than about one and a half of its election time-outs.
Source: etcd 3.4 documentation, "Why gRPC gateway" and "etcd API Reference" (rpc.proto).
"""

import base64
import http.client
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from isthmus.runtime.federation.store import KEY_BYTES_MAX, VALUE_BYTES_MAX, Entry, Listing, StoreLostError, StoreRefusedError

__all__ = ["EtcdStore"]

CALL_S_MAX: Final = 2.0
RETRY_S: Final = 0.05
# gRPC's codes of what another member, or the same one a little later, may do: deadline, exhausted, aborted, unavailable.
AGAIN: Final = frozenset({4, 8, 10, 14})
UNKNOWN: Final = 2  # what the gateway makes of a raft time-out


class EtcdStore:
    """A `Store` on the members of one etcd cluster."""

    def __init__(
        self, addresses: tuple[tuple[str, int], ...], tls: ssl.SSLContext | None = None, *, patience_s: float = 10.0
    ) -> None:
        self.addresses, self.patience_s = addresses, patience_s
        self._tls = tls
        self._preferred = 0
        self._free: list[tuple[int, http.client.HTTPConnection]] = []
        self._watching: set[http.client.HTTPConnection] = set()
        self._guard = threading.Lock()
        self._closed = False

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        _refuse_large({key: ""}, ())
        found = self._call("/v3/kv/range", {"key": _coded(key)}).get("kvs", [])
        return _entry(found[0]) if found else None

    def list(self, prefix: str) -> Listing:
        """See `Store.list`."""
        answer = self._call("/v3/kv/range", {**_range(prefix), "sort_target": "KEY", "sort_order": "ASCEND"})
        return Listing(int(answer["header"]["revision"]), {_text(kv["key"]): _entry(kv) for kv in answer.get("kvs", [])})

    def txn(self, compares: Mapping[str, int], puts: Mapping[str, str], deletes: tuple[str, ...] = (), *, lease: int = 0) -> bool:
        """See `Store.txn`."""
        _refuse_large(puts, deletes)
        conditions = [
            {"key": _coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in compares.items()
        ]
        changes: list[dict[str, Any]] = [{"request_delete_range": {"key": _coded(key)}} for key in deletes if key not in puts]
        changes += [
            {"request_put": {"key": _coded(key), "value": _coded(value), "lease": str(lease)}} for key, value in puts.items()
        ]
        return bool(self._call("/v3/kv/txn", {"compare": conditions, "success": changes}).get("succeeded", False))

    def grant(self, ttl_s: float) -> int:
        """See `Store.grant`; the time is rounded up to whole seconds."""
        if not 0 < ttl_s <= 86_400:
            raise StoreRefusedError(f"{self._name()}: a lease of {ttl_s} s")
        return int(self._call("/v3/lease/grant", {"TTL": str(math.ceil(ttl_s))})["ID"])

    def keep_alive(self, lease: int) -> bool:
        """See `Store.keep_alive`."""
        return int(self._call("/v3/lease/keepalive", {"ID": str(lease)})["result"].get("TTL", 0)) > 0

    def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        try:
            self._call("/v3/lease/revoke", {"ID": str(lease)})
        except StoreRefusedError as error:
            if "lease not found" not in str(error):
                raise

    def watch(self, prefix: str, after: int, timeout_s: float) -> Listing | None:
        """See `Store.watch`."""
        deadline_s = time.monotonic() + timeout_s
        # Events of the very next revision on: what happened between the caller's listing and now is told at once.
        request = json.dumps({"create_request": {**_range(prefix), "start_revision": str(after + 1)}})
        while (left_s := deadline_s - time.monotonic()) > 0 and not self._closed:
            connection = self._connect(self._preferred, left_s)
            with self._guard:
                self._watching.add(connection)
            try:
                connection.request("POST", "/v3/watch", request)
                if self._heard(connection, deadline_s):
                    return self.list(prefix)
                return None
            except (OSError, http.client.HTTPException, ValueError):
                self._preferred = (self._preferred + 1) % len(self.addresses)
                time.sleep(RETRY_S)
                listing = self.list(prefix)  # also tells whether anyone is there
                if listing.revision > after:
                    return listing
            finally:
                with self._guard:
                    self._watching.discard(connection)
                connection.close()
        return None

    def close(self) -> None:
        """See `Store.close`."""
        with self._guard:
            self._closed = True
            free, self._free = self._free, []
            watching = list(self._watching)
        for _, connection in free:
            connection.close()
        for connection in watching:  # its own thread closes it: another one reads from it now
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _heard(self, connection: http.client.HTTPConnection, deadline_s: float) -> bool:
        """Whether an event came before the deadline; True too where etcd says that the events asked for are gone."""
        with connection.getresponse() as response:
            return self._has_event(connection, response, deadline_s)

    def _has_event(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline_s: float) -> bool:
        while (left_s := deadline_s - time.monotonic()) > 0:
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            try:
                line = response.readline()
            except TimeoutError:
                return False
            if not line:
                raise http.client.HTTPException("the watch ended")
            result = json.loads(line).get("result", {})
            if result.get("events") or result.get("canceled"):
                return True
        return False

    def _call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(request)
        deadline_s, last = time.monotonic() + self.patience_s, "closed"
        while not self._closed:
            number = self._preferred
            try:
                answer = self._ask(number, path, body, deadline_s)
            except (OSError, http.client.HTTPException, ValueError) as error:
                last = f"{self.addresses[number][0]}:{self.addresses[number][1]}: {error or type(error).__name__}"
                answer = None
            if answer is not None:
                error, code = answer.get("error"), answer.get("code")
                if not error:
                    return answer
                message = error if isinstance(error, str) else str(error.get("message", error))
                if code not in AGAIN and not (code == UNKNOWN and "lease" not in message):
                    raise StoreRefusedError(f"{self._name()}: {message}")
                last = message
            if time.monotonic() + RETRY_S >= deadline_s:
                break
            self._preferred = (number + 1) % len(self.addresses)
            time.sleep(RETRY_S)
        raise StoreLostError(f"{self._name()} did not answer within {self.patience_s:g} s ({last})")

    def _ask(self, number: int, path: str, body: str, deadline_s: float) -> dict[str, Any]:
        connection = None
        with self._guard:
            for index, (of, free) in enumerate(self._free):
                if of == number:
                    connection = free
                    del self._free[index]
                    break
        timeout_s = max(0.1, min(CALL_S_MAX, deadline_s - time.monotonic()))
        connection = connection or self._connect(number, timeout_s)
        try:
            connection.timeout = timeout_s
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        except BaseException:
            connection.close()
            raise
        with self._guard:
            if not self._closed:
                self._free.append((number, connection))
                return answer
        connection.close()
        return answer

    def _connect(self, number: int, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self.addresses[number]
        timeout_s = max(0.1, min(CALL_S_MAX, timeout_s))
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _name(self) -> str:
        return "etcd at " + ",".join(f"{host}:{port}" for host, port in self.addresses)


def _refuse_large(puts: Mapping[str, str], deletes: tuple[str, ...]) -> None:
    """The same limits as our own coordinator's, so that a run does not depend on which of the two it has."""
    for key in (*puts, *deletes):
        if not key or len(key.encode()) > KEY_BYTES_MAX:
            raise StoreRefusedError(f"a key of {len(key.encode())} bytes; 1 to {KEY_BYTES_MAX} are allowed")
    for key, value in puts.items():
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise StoreRefusedError(f"{key!r}: a value of {len(value.encode())} bytes; {VALUE_BYTES_MAX} are allowed")


def _range(prefix: str) -> dict[str, str]:
    """All keys from `prefix` to the first that does not begin so; a whole store is from one zero byte on."""
    raw = prefix.encode()
    if not raw:
        return {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}
    end = bytearray(raw)
    end[-1] += 1  # UTF-8 never contains 0xff
    return {"key": base64.b64encode(raw).decode(), "range_end": base64.b64encode(bytes(end)).decode()}


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode()


def _entry(kv: dict[str, Any]) -> Entry:
    return Entry(_text(kv.get("value", "")), int(kv["mod_revision"]))
