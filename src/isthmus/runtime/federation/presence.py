"""A region's presence in the store: its lease and its entries, and who of the others can be reached from here."""

import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from isthmus.plan import Survival
from isthmus.runtime.environment import Members, split_address
from isthmus.runtime.federation.facts import Rules
from isthmus.runtime.federation.ledger import Ledger
from isthmus.runtime.federation.reach import Probe, Reach, probe
from isthmus.runtime.federation.store import Store, StoreLostError, StoreRefusedError

__all__ = ["PROBE_S", "Presence"]

PROBE_S: Final = 0.6


class Presence:
    """What a `Membership` stands on; see there for the attributes."""

    def __init__(self, store: Store, region: str, members: Members, survival: Survival, run: str) -> None:
        names = tuple(entry.name for entry in members.regions)
        self.region, self.survival = region, survival
        self.rules = Rules(order=names, start_regions=survival.start_regions or len(names), on_partition=survival.on_partition)
        self.probe: Probe = probe
        self.say: Callable[[str], None] = self._print
        self.store_lost = False
        self._store, self._ledger = store, Ledger(run)
        self._addresses = {entry.name: [split_address(rail) for rail in entry.rails] for entry in members.regions}
        self._stopping = threading.Event()
        self._probers = ThreadPoolExecutor(max_workers=max(4, len(names)), thread_name_prefix="isthmus-probe")
        self._incarnation, self._lease, self._registered = "", 0, False
        self._fatal: Exception | None = None

    def _register(self) -> None:
        while True:
            try:
                if not self._lease:
                    self._lease = self._store.grant(self.survival.detect_s)
                incarnation = self._incarnation
                self._store.txn({}, {self._ledger.live(self.region): incarnation}, lease=self._lease)
                self._registered = incarnation == self._incarnation
                return
            except StoreRefusedError:  # the lease has ended meanwhile
                self._lease = 0

    def _put(self, key: str, value: str, revision: int | None = None) -> None:
        """An entry of this region, on its lease, where it is at `revision`; a lease that has ended is replaced."""
        compares = {} if revision is None else {key: revision}
        try:
            self._store.txn(compares, {key: value}, lease=self._lease)
        except StoreRefusedError:
            self._lease = 0
            self._register()
            self._store.txn(compares, {key: value}, lease=self._lease)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Through a loss of the store; without one under `continue`, which then finds it lost again and goes alone."""
        while not self._stopping.is_set():
            try:
                return work()
            except StoreLostError as error:
                if self.rules.on_partition == "continue":
                    return None
                self.say(f"{error}; syncs wait for it, training goes on")
        return None

    def _quietly(self, work: Callable[[], object]) -> None:
        with suppress(StoreLostError, StoreRefusedError):
            work()

    def _reach(self, regions: Collection[str]) -> dict[str, Reach]:
        others = [region for region in regions if region != self.region]
        jobs = {region: self._probers.submit(self.probe, self._addresses[region], PROBE_S) for region in others}
        found: dict[str, Reach] = {region: job.result() for region, job in jobs.items()}
        if self.region in regions:
            found[self.region] = "open"
        return found

    def _print(self, text: str) -> None:
        print(f"isthmus {self.region}: {text}", file=sys.stderr, flush=True)

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal
