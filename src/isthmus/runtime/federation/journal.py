"""The coordinator's memory on disk: every change is written and forced out before it is answered.

A line is `crc32 in 8 hex digits, space, JSON`. The first lines are a snapshot, the others changes in order. A last line that a
crash cut short is dropped: nobody was told of it. A line that is wrong elsewhere is an error, not a guess.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.errors import InputError
from isthmus.runtime.federation.store import Entry
from isthmus.runtime.federation.table import Table

__all__ = ["Journal"]

COMPACT_BYTES: Final = 1 << 20


class Journal:
    """An open journal; one process at a time.

    Raises:
        InputError: The file is another program's, is in use, or is damaged before its last line.
    """

    def __init__(self, path: Path, now_s: float, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path, self._compact_bytes = path, compact_bytes
        self.table = Table()
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(str(path), "is in use by another coordinator", "give each its own --journal") from None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = self._load(now_s)
            self._floor = self._size
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, change: Mapping[str, Any]) -> None:
        """Append a change and force it to disk; the caller then makes it in the table, before the next one is written.

        Raises:
            OSError: The disk is full or broken. What a half-written line leaves behind is cut off again.
        """
        # Before this change and not after it: the table does not hold it yet, and a snapshot would lose it.
        if self._size > self._floor + self._compact_bytes:
            self.compact()
        line = _line(change)
        try:
            _write_all(self._file, line)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def compact(self) -> None:
        """Replace the file by a snapshot of the table; a crash leaves either the old file or the new one."""
        partial = Path(f"{self.path}.partial")
        lines = b"".join(_line(record) for record in _snapshot(self.table))
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, lines)
            os.fsync(file)
            os.replace(partial, self.path)
            _force_folder(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size, self._floor = file, len(lines), len(lines)

    def close(self) -> None:
        """Let another process use the file."""
        os.close(self._file)
        os.close(self._lock)

    def _load(self, now_s: float) -> int:
        with open(self.path, "rb") as file:
            data = file.read()
        good = 0
        while good < len(data):
            end = data.find(b"\n", good) + 1
            record = _record(data[good:end]) if end else None
            if record is None:
                if end and end < len(data):
                    number = data.count(b"\n", 0, good) + 1
                    raise InputError(f"{self.path}:{number}", "is no line of a coordinator's journal, or was damaged")
                break
            replay(self.table, record, now_s)
            good = end
        if good < len(data):
            if good == 0 and b"\n" in data:
                raise InputError(f"{self.path}:1", "is no line of a coordinator's journal, or was damaged")
            os.ftruncate(self._file, good)
            os.fsync(self._file)
        self.table.forget_changes()
        return good


def replay(table: Table, record: Mapping[str, Any], now_s: float) -> None:
    """Do again what a line of the journal says; leases begin their time anew."""
    match record["do"]:
        case "snapshot":
            table.revision, table.next_lease = record["revision"], record["next_lease"]
        case "entry":
            table.restore(record["key"], Entry(record["value"], record["revision"]), record["lease"])
        case "txn":
            table.apply(record["puts"], record["deletes"], record["lease"])
        case "grant":
            table.adopt(record["lease"], record["ttl_s"], now_s)
        case "revoke":
            table.revoke(record["lease"])
        case other:
            raise InputError("the journal", f"has a change {other!r} of a later version", "use the newer coordinator")


def _snapshot(table: Table) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"do": "snapshot", "revision": table.revision, "next_lease": table.next_lease}]
    lines += [{"do": "grant", "lease": lease, "ttl_s": ttl_s} for lease, ttl_s in table.leases().items()]
    for key, (entry, lease) in table.entries().items():
        lines.append({"do": "entry", "key": key, "value": entry.value, "revision": entry.revision, "lease": lease})
    return lines


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _record(line: bytes) -> dict[str, Any] | None:
    check, space, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or not space or check != b"%08x" % zlib.crc32(body):
        return None
    return json.loads(body)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _force_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
