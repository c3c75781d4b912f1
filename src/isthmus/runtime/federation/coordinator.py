"""The coordinator: our own server of the store, for those who do not run etcd. One process, little memory, no torch.

A request and an answer are each a 4-byte big-endian length and that many bytes of JSON. Nothing is unpickled or evaluated,
sizes are bounded, and whoever breaks the rules is disconnected. With a journal a restart loses nothing.
"""

import asyncio
import json
import ssl
import struct
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.federation.journal import Journal
from isthmus.runtime.federation.store import Listing
from isthmus.runtime.federation.table import RefusedError, Table

__all__ = ["FRAME_BYTES_MAX", "LENGTH", "Coordinator", "serve", "serving"]

FRAME_BYTES_MAX: Final = 1 << 22
CONNECTIONS_MAX: Final = 1000
WATCH_S_MAX: Final = 60.0
LENGTH: Final = struct.Struct(">I")


@dataclass(slots=True)
class Coordinator:
    """The server's state; every method runs on its event loop."""

    table: Table
    journal: Journal | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    connections: int = 0

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says.

        Raises:
            RefusedError, KeyError, TypeError, ValueError, AttributeError: The request is wrong; nothing was changed.
        """
        answers = {
            "get": self._get,
            "list": self._list,
            "txn": self._txn,
            "grant": self._grant,
            "keep": self._keep,
            "revoke": self._revoke,
            "watch": self._watch,
        }
        return await answers[_text(request["do"])](request)

    async def _get(self, request: dict[str, Any]) -> dict[str, Any]:
        entry = self.table.get(_text(request["key"]))
        return {"entry": [entry.value, entry.revision] if entry else None}

    async def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return _listed(self.table.listing(_text(request["prefix"])))

    async def _grant(self, request: dict[str, Any]) -> dict[str, Any]:
        ttl_s = float(request["ttl_s"])
        lease = self.table.grant(ttl_s, time.monotonic())
        self._write({"do": "grant", "lease": lease, "ttl_s": ttl_s})
        return {"lease": lease}

    async def _keep(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"alive": self.table.keep_alive(_number(request["lease"]), time.monotonic())}

    async def _revoke(self, request: dict[str, Any]) -> dict[str, Any]:
        await self.end(_number(request["lease"]))
        return {}

    async def _txn(self, request: dict[str, Any]) -> dict[str, Any]:
        compares = {_text(key): _number(revision) for key, revision in request["compares"].items()}
        puts = {_text(key): _text(value) for key, value in request["puts"].items()}
        deletes, lease = [_text(key) for key in request["deletes"]], _number(request["lease"])
        self.table.check(puts, deletes, lease)
        before = self.table.revision
        held = all((entry.revision if (entry := self.table.get(key)) else 0) == seen for key, seen in compares.items())
        if held:
            # On disk first: nobody may see a change that a crash could take back.
            self._write({"do": "txn", "puts": puts, "deletes": deletes, "lease": lease})
            self.table.apply(puts, deletes, lease)
        await self._announce(before)
        return {"done": held}

    async def end(self, lease: int) -> None:
        """End a lease."""
        before = self.table.revision
        if lease in self.table.leases():
            self._write({"do": "revoke", "lease": lease})
            self.table.revoke(lease)
        await self._announce(before)

    async def _watch(self, request: dict[str, Any]) -> dict[str, Any]:
        prefix, after = _text(request["prefix"]), _number(request["after"])
        timeout_s = min(float(request["timeout_s"]), WATCH_S_MAX)
        async with self.changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait_for(lambda: self.table.changed(prefix, after)), timeout_s)
        return _listed(self.table.listing(prefix)) if self.table.changed(prefix, after) else {"entries": None}

    async def _announce(self, before: int) -> None:
        if self.table.revision != before:
            async with self.changed:
                self.changed.notify_all()

    def _write(self, change: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.write(change)

    async def expire(self) -> None:
        """End the leases whose time is over, for ever."""
        while True:
            for lease in self.table.ended(time.monotonic()):
                await self.end(lease)
            await asyncio.sleep(0.02)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it leaves or breaks the rules."""
        self.connections += 1
        try:
            while self.connections <= CONNECTIONS_MAX and (request := await _read(reader)) is not None:
                writer.write(_frame(await self._answer(request)))
                await writer.drain()
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError, RefusedError) as error:
            if isinstance(error, RefusedError):
                _say(f"disconnected {writer.get_extra_info('peername')}: {error}")
        finally:
            self.connections -= 1
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.answer(request)
        except RefusedError as error:
            return {"refused": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return {"refused": f"a malformed request ({error!r})"}
        except OSError as error:
            _say(f"the journal cannot be written: {error}")
            return {"broken": f"the journal cannot be written: {error}"}


async def serve(
    address: tuple[str, int],
    journal: Path | None = None,
    tls: ssl.SSLContext | None = None,
    started: "threading.Event | None" = None,
) -> None:
    """Serve until cancelled.

    Raises:
        InputError: The journal cannot be used.
        OSError: The address cannot be listened at.
    """
    book = Journal(journal, time.monotonic()) if journal else None
    # Without a journal a restart forgets all, but its revisions go on growing: watchers must not take it for the past.
    table = book.table if book else Table(revision=time.time_ns() // 1_000_000)
    coordinator = Coordinator(table, book)
    try:
        server = await asyncio.start_server(coordinator.connected, *address, ssl=tls, backlog=256, limit=1 << 16)
        async with server:
            expiry = asyncio.create_task(coordinator.expire())
            if started is not None:
                started.set()
            try:
                await asyncio.gather(expiry, server.serve_forever())
            finally:
                expiry.cancel()
    finally:
        if book is not None:
            book.close()


@contextmanager
def serving(address: tuple[str, int], journal: Path | None = None, tls: ssl.SSLContext | None = None) -> Generator[None]:
    """A coordinator on a thread of this process, for tests and for runs on one machine."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    task = loop.create_task(serve(address, journal, tls, started))

    async def until_stopped() -> None:
        await asyncio.gather(task, return_exceptions=True)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for left in rest:
            left.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(until_stopped())
        loop.close()
        started.set()

    thread = threading.Thread(target=run, name="isthmus-coordinator", daemon=True)
    thread.start()
    started.wait(10.0)
    if task.done():
        task.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(5.0)


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    try:
        header = await reader.readexactly(LENGTH.size)
    except asyncio.IncompleteReadError:
        return None
    (size,) = LENGTH.unpack(header)
    if size > FRAME_BYTES_MAX:
        raise RefusedError(f"a request of {size} bytes; {FRAME_BYTES_MAX} are allowed")
    try:
        request = json.loads(await reader.readexactly(size))
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"a request that is no JSON ({error})") from None
    if not isinstance(request, dict):
        raise RefusedError("a request that is no JSON object")
    return request  # pyright: ignore[reportUnknownVariableType]


def _frame(answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def _listed(listing: Listing) -> dict[str, Any]:
    entries = {key: [entry.value, entry.revision] for key, entry in listing.entries.items()}
    return {"revision": listing.revision, "entries": entries}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RefusedError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(f"{value!r} is no whole number")
    return value


def _say(message: str) -> None:
    print(f"isthmus coordinator: {message}", file=sys.stderr, flush=True)
