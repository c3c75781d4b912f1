"""The store: a small map that all regions agree on, through which they find each other and regroup.

It is off the path of a round that does not fail. Values are short texts (JSON here). Every change gets the next revision
of the whole store; an entry remembers the revision of its own last change, and transactions compare against that.
Entries may hang on a lease, and go when nobody keeps it alive. Nothing here imports torch.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from isthmus.errors import InputError

__all__ = [
    "KEY_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "Entry",
    "Listing",
    "Store",
    "StoreError",
    "StoreLostError",
    "StoreRefusedError",
    "open_store",
]

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 1 << 16


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message names its address."""


class StoreLostError(StoreError):
    """No server of the store answered within the patience given."""


class StoreRefusedError(StoreError):
    """The store answered that the request is wrong: too large, malformed, or of a lease that is gone."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the revision of its last change (at least 1)."""

    value: str
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under a prefix by key, in the order of their keys, as of one `revision` of the whole store."""

    revision: int
    entries: Mapping[str, Entry]


class Store(Protocol):
    """A linearizable map. Safe from several threads; calls are retried until the client's patience ends.

    Every method may raise `StoreLostError` and `StoreRefusedError`.
    """

    def get(self, key: str) -> Entry | None:
        """The entry of `key`, if there is one."""
        ...

    def list(self, prefix: str) -> Listing:
        """All entries whose keys begin with `prefix`."""
        ...

    def txn(self, compares: Mapping[str, int], puts: Mapping[str, str], deletes: tuple[str, ...] = (), *, lease: int = 0) -> bool:
        """Where every key of `compares` is at that revision (0: absent), put and delete all at once.

        The puts hang on `lease` unless it is 0. False: some key is at another revision, and nothing was changed. Where
        an answer was lost the client asks again, so False may also follow a success of one's own: look what stands there.
        """
        ...

    def grant(self, ttl_s: float) -> int:
        """A new lease, not 0, that ends `ttl_s` after it was last kept alive."""
        ...

    def keep_alive(self, lease: int) -> bool:
        """Begin the lease's time anew; False where it has ended."""
        ...

    def revoke(self, lease: int) -> None:
        """End the lease; its entries go at once. Nothing happens where it has ended."""
        ...

    def watch(self, prefix: str, after: int, timeout_s: float) -> Listing | None:
        """The entries under `prefix` as soon as one was put or deleted later than revision `after`; None after `timeout_s`."""
        ...

    def close(self) -> None:
        """Drop the connections; calls under way in other threads fail."""
        ...


def open_store(address: str, tls: ssl.SSLContext | None = None, *, patience_s: float = 10.0) -> Store:
    """The store at `address`.

    Args:
        address: `tcp://host:port` of `isthmus coordinator`, or `etcd+http://host:port,host:port` (`etcd+https`) of the members
            of an etcd cluster.
        tls: Client side, with this region's certificate; None speaks in the clear.
        patience_s: How long one call looks for a server that answers before it raises `StoreLostError`.

    Raises:
        InputError: The address is none of these.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("tcp", "etcd+http", "etcd+https") or not rest:
        raise InputError(
            "ISTHMUS_COORDINATOR",
            f"{address!r} is no store address",
            "write tcp://host:port, or etcd+http://host:port,host:port",
        )
    from isthmus.runtime.environment import split_address

    try:
        addresses = tuple(split_address(part) for part in rest.rstrip("/").split(","))
    except ValueError as error:
        raise InputError("ISTHMUS_COORDINATOR", str(error)) from error
    if scheme == "tcp":
        from isthmus.runtime.federation.tcp_store import TcpStore

        if len(addresses) != 1:
            raise InputError("ISTHMUS_COORDINATOR", f"{address!r} names {len(addresses)} servers", "a coordinator is one server")
        return TcpStore(addresses[0], tls, patience_s=patience_s)
    from isthmus.runtime.federation.etcd_store import EtcdStore

    if (scheme == "etcd+https") != (tls is not None):
        raise InputError(
            "ISTHMUS_COORDINATOR", f"{address!r}: https takes keys and http none", "set ISTHMUS_KEYS with etcd+https"
        )
    return EtcdStore(addresses, tls, patience_s=patience_s)
