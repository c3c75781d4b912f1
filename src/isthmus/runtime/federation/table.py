"""What a store holds, without any input or output: entries, leases and the revisions of recent changes.

Time is told by the caller, so that the server, its journal and the simulations of the tests share these lines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from isthmus.runtime.federation.store import KEY_BYTES_MAX, VALUE_BYTES_MAX, Entry, Listing

__all__ = ["ENTRIES_MAX", "LEASES_MAX", "TTL_S_MAX", "RefusedError", "Table"]

ENTRIES_MAX: Final = 20_000
LEASES_MAX: Final = 10_000
TTL_S_MAX: Final = 86_400.0
CHANGES_KEPT: Final = 10_000


class RefusedError(ValueError):
    """A request that the table does not take; nothing was changed."""


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_s: float
    keys: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class _Held:
    entry: Entry
    lease: int


@dataclass(slots=True)
class Table:
    """All entries and leases. Methods that change something return what changed, for the journal.

    Attributes:
        revision: Of the last change; 0 before any.
        next_lease: Number of the next lease; numbers are never used twice.
    """

    revision: int = 0
    next_lease: int = 1
    _held: dict[str, _Held] = field(default_factory=dict[str, _Held])
    _leases: dict[int, _Lease] = field(default_factory=dict[int, _Lease])
    _changes: dict[str, int] = field(default_factory=dict[str, int])
    _forgotten: int = 0

    def get(self, key: str) -> Entry | None:
        """The entry of `key`."""
        held = self._held.get(key)
        return held.entry if held else None

    def listing(self, prefix: str) -> Listing:
        """All entries under `prefix`."""
        found = {key: self._held[key].entry for key in sorted(self._held) if key.startswith(prefix)}
        return Listing(self.revision, found)

    def changed(self, prefix: str, after: int) -> bool:
        """Whether something under `prefix` changed later than `after`; true where that is no longer known."""
        if after < self._forgotten or after > self.revision:
            return True
        return any(revision > after and key.startswith(prefix) for key, revision in self._changes.items())

    def check(self, puts: Mapping[str, str], deletes: Iterable[str], lease: int) -> None:
        """Refuse what may not be stored.

        Raises:
            RefusedError: A key or value is too long, the table is full, or the lease has ended.
        """
        for key in (*puts, *deletes):
            if not key or len(key.encode()) > KEY_BYTES_MAX:
                raise RefusedError(f"a key of {len(key.encode())} bytes; 1 to {KEY_BYTES_MAX} are allowed")
        for key, value in puts.items():
            if len(value.encode()) > VALUE_BYTES_MAX:
                raise RefusedError(f"{key!r}: a value of {len(value.encode())} bytes; {VALUE_BYTES_MAX} are allowed")
        if len(self._held) + sum(key not in self._held for key in puts) > ENTRIES_MAX:
            raise RefusedError(f"the store is full: {ENTRIES_MAX} entries")
        if lease and lease not in self._leases:
            raise RefusedError(f"lease {lease} has ended")

    def txn(self, compares: Mapping[str, int], puts: Mapping[str, str], deletes: Iterable[str], lease: int = 0) -> bool:
        """See `Store.txn`; to be checked first."""
        for key, revision in compares.items():
            entry = self.get(key)
            if (entry.revision if entry else 0) != revision:
                return False
        self.apply(puts, deletes, lease)
        return True

    def apply(self, puts: Mapping[str, str], deletes: Iterable[str], lease: int = 0) -> None:
        """Put and delete under one new revision; nothing to do takes none."""
        gone = [key for key in deletes if key in self._held]
        if not puts and not gone:
            return
        self.revision += 1
        for key in gone:
            self._drop(key)
        for key, value in puts.items():
            if key in self._held:
                self._drop(key)
            self._held[key] = _Held(Entry(value, self.revision), lease)
            if lease:
                self._leases[lease].keys.add(key)
            self._note(key)

    def grant(self, ttl_s: float, now_s: float) -> int:
        """See `Store.grant`.

        Raises:
            RefusedError: The time is not within reason, or there are too many leases.
        """
        if not 0 < ttl_s <= TTL_S_MAX:
            raise RefusedError(f"a lease of {ttl_s} s; more than 0 and at most {TTL_S_MAX:g} are allowed")
        if len(self._leases) >= LEASES_MAX:
            raise RefusedError(f"too many leases: {LEASES_MAX}")
        lease, self.next_lease = self.next_lease, self.next_lease + 1
        self.adopt(lease, ttl_s, now_s)
        return lease

    def adopt(self, lease: int, ttl_s: float, now_s: float) -> None:
        """A lease of that number, as read from a journal."""
        self._leases[lease] = _Lease(ttl_s, now_s + ttl_s)
        self.next_lease = max(self.next_lease, lease + 1)

    def keep_alive(self, lease: int, now_s: float) -> bool:
        """See `Store.keep_alive`."""
        held = self._leases.get(lease)
        if held is None:
            return False
        held.ends_s = now_s + held.ttl_s
        return True

    def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        held = self._leases.pop(lease, None)
        if held is not None:
            self.apply({}, sorted(held.keys))

    def ended(self, now_s: float) -> list[int]:
        """Leases whose time is over; the caller revokes them."""
        return [lease for lease, held in self._leases.items() if held.ends_s <= now_s]

    def leases(self) -> dict[int, float]:
        """Their times to live, by number."""
        return {lease: held.ttl_s for lease, held in self._leases.items()}

    def entries(self) -> dict[str, tuple[Entry, int]]:
        """Every entry and its lease."""
        return {key: (held.entry, held.lease) for key, held in self._held.items()}

    def restore(self, key: str, entry: Entry, lease: int) -> None:
        """An entry as it was, revision included, as read from a journal's snapshot."""
        self._held[key] = _Held(entry, lease)
        if lease:
            self._leases[lease].keys.add(key)

    def forget_changes(self) -> None:
        """Watchers of what was before now are to look for themselves."""
        self._forgotten = self.revision
        self._changes.clear()

    def _drop(self, key: str) -> None:
        held = self._held.pop(key)
        if held.lease and held.lease in self._leases:
            self._leases[held.lease].keys.discard(key)
        self._note(key)

    def _note(self, key: str) -> None:
        self._changes[key] = self.revision
        if len(self._changes) > CHANGES_KEPT:
            self.forget_changes()
