"""Strike a running fleet with one fault, undo it, and wait until all regions are together again."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chaos.checks import Happened
from chaos.faults import Fault, Kind
from chaos.fleet import INNER, WITNESS, Fleet
from chaos.history import History, Line, read_history
from isthmus.emulate import EmulatedLink
from isthmus.runtime.checkpoint import latest

__all__ = ["Player", "StuckError"]

START_LIMIT_S, HEAL_LIMIT_S, QUIET_LIMIT_S, HANG_LIMIT_S = 240.0, 120.0, 90.0, 20.0
QUIET_ROUNDS = 2
LOSS = 0.05
SYNC_BYTES = 30_000  # on the wire since the window's end: a sync, not signs of life
POLL_S = 0.02


class StuckError(RuntimeError):
    """The fleet did not do in time what it must; the message says what."""


class Player:
    """Plays faults one after the other. `over` tells that the ranks have finished training."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._regions = set(fleet.scenario.regions)

    def over(self) -> bool:
        """Whether some rank has reached its end."""
        return any(stretches and stretches[-1].end for stretches in self._history().ranks.values())

    def play(self, fault: Fault) -> Happened | None:
        """One fault, from quiet to quiet; None where training was over before it could begin.

        Raises:
            StuckError: The regions did not come together again, or something hung.
        """
        limit_s = QUIET_LIMIT_S if self._history().ranks else START_LIMIT_S
        if not self._together(time.time(), limit_s, f"quiet before fault {fault.number}"):
            return None
        began_s = self._strike(fault)
        if not self._together(time.time(), HEAL_LIMIT_S, f"healing of fault {fault.number} ({fault.kind} {fault.region})"):
            return None if self.over() and fault.kind != "store" else Happened(fault=fault, began_s=began_s, healed_s=time.time())
        return Happened(fault=fault, began_s=began_s, healed_s=time.time())

    def _strike(self, fault: Fault) -> float:
        """Begin and undo; the time at which it began."""
        plays: dict[Kind, Callable[[Fault], float]] = {
            "kill-inside": self._kill, "kill-between": self._kill, "kill-rank": self._kill, "freeze": self._freeze,
            "slow": self._slow, "cut": self._links, "lossy": self._links, "flip-wire": self._flip, "flip-memory": self._flip,
            "store": self._store, "disk-full": self._fill,
        }  # fmt: skip
        return plays[fault.kind](fault)

    def _flip(self, fault: Fault) -> float:
        """Have a bit flipped by the proxy, or in the rank's memory, and wait until it was."""
        key, began_s = (fault.region, fault.rank), time.time()
        process, log = self.fleet.ranks[key], f"{fault.region}-{fault.rank}"
        if fault.kind == "flip-wire":
            process, log = self.fleet.proxies[key], f"proxy-{log}"
        before = self._said(log, "flipped")
        process.send_signal(signal.SIGUSR1)
        self.until(lambda: self._said(log, "flipped") > before, HEAL_LIMIT_S, f"a bit to flip ({fault.kind})")
        return began_s

    def _aim(self, fault: Fault) -> None:
        """Wait for the phase: the middle of a window, or a sync on the wire."""
        key = (fault.region, 0)
        if fault.kind == "kill-between":
            self.until(lambda: self._step(key) % INNER == INNER // 2, HEAL_LIMIT_S, "the middle of a window")
            return
        self.until(lambda: self._step(key) % INNER == INNER - 1, HEAL_LIMIT_S, "the end of a window")
        before = self._sent(fault.region)
        self.until(lambda: self._sent(fault.region) - before > SYNC_BYTES, HEAL_LIMIT_S, "a sync on the wire")

    def _kill(self, fault: Fault) -> float:
        if fault.kind != "kill-rank":
            self._aim(fault)
        began_s = time.time()
        self.fleet.signal(fault.region, signal.SIGKILL, fault.rank if fault.kind == "kill-rank" else None)
        self.until(lambda: not self.fleet.alive(fault.region), HANG_LIMIT_S, f"the end of {fault.region}'s other ranks")
        self.fleet.end_proxies(fault.region)
        time.sleep(fault.duration_s)
        self.fleet.start_region(fault.region)
        return began_s

    def _freeze(self, fault: Fault) -> float:
        began_s = time.time()
        self.fleet.signal(fault.region, signal.SIGSTOP)
        time.sleep(fault.duration_s)
        self.fleet.signal(fault.region, signal.SIGCONT)
        return began_s

    def _slow(self, fault: Fault) -> float:
        """Nine of ten parts of the time stopped, in turns far shorter than the time of detection."""
        began_s = time.time()
        while time.time() < began_s + fault.duration_s:
            self.fleet.signal(fault.region, signal.SIGSTOP)
            time.sleep(0.18)
            self.fleet.signal(fault.region, signal.SIGCONT)
            time.sleep(0.02)
        return began_s

    def _links(self, fault: Fault) -> float:
        began_s, tunnel = time.time(), self.fleet.tunnel
        ends = [pair for pair in tunnel.links() if pair[0] == fault.region and pair[1] != WITNESS]
        if fault.value % 2:
            ends.append((fault.region, WITNESS))
        plain: dict[tuple[str, str], EmulatedLink] = {pair: tunnel.link(*pair) for pair in ends}
        for pair in ends:
            if fault.kind == "cut":
                tunnel.set_link(*pair, up=False)
            else:
                tunnel.set_link(*pair, loss=LOSS)
        time.sleep(fault.duration_s)
        for pair, link in plain.items():
            tunnel.set_link(*pair, up=link.up, loss=link.loss)
        return began_s

    def _store(self, fault: Fault) -> float:
        began_s, number = time.time(), fault.value % len(self.fleet.servers)
        server = self.fleet.servers[number]
        server.send_signal(signal.SIGKILL)
        server.wait()
        time.sleep(fault.duration_s)
        self.fleet.servers[number] = self.fleet.start_server(number)
        return began_s

    def _fill(self, fault: Fault) -> float:
        """Fill the file system that checkpoints go to, until one has failed for want of room; then make room."""
        began_s, filler, folder = time.time(), self.fleet.checkpoints / "filler", self.fleet.checkpoints
        failed, before = self._failed_checkpoints(fault.region), latest(folder, fault.region)
        with open(filler, "wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        try:
            what = f"a checkpoint of {fault.region} that fails for want of room"
            self.until(lambda: self._failed_checkpoints(fault.region) > failed, HEAL_LIMIT_S, what)
            time.sleep(fault.duration_s)
            after = latest(folder, fault.region)
        finally:
            filler.unlink()
        if before is not None and (after is None or after.step < before.step):
            raise StuckError(f"the checkpoint of step {before.step} did not outlive the full disk")
        return began_s

    def _failed_checkpoints(self, region: str) -> int:
        lines = (self.fleet.metrics / f"{region}-0.jsonl").read_text(encoding="utf-8").splitlines()
        return sum('"kind":"checkpoint"' in line and '"ok":false' in line for line in lines)

    def _together(self, since_s: float, limit_s: float, what: str) -> bool:
        """Wait for QUIET_ROUNDS rounds of all regions after `since_s`; False where training is over before."""
        done = threading.Event()

        def quiet() -> bool:
            if self.over():
                done.set()
                return True
            rounds = [line for line in self._rounds() if line["t"] > since_s]
            full = [line for line in rounds if set(line["counted"]) == self._regions]
            return all(sum(line["who"] == region for line in full) >= QUIET_ROUNDS for region in self._regions)

        self.until(quiet, limit_s, what)
        return not done.is_set()

    def _rounds(self) -> list[Line]:
        return [
            line | {"who": region}
            for (region, rank), stretches in self._history().ranks.items()
            if rank == 0
            for stretch in stretches[-2:]
            for line in stretch.rounds[-10:]
        ]

    def _history(self) -> History:
        return read_history(self.fleet.metrics)

    def _step(self, key: tuple[str, int]) -> int:
        stretches = self._history().ranks.get(key, [])
        return max(stretches[-1].steps, default=0) if stretches else 0

    def _sent(self, region: str) -> int:
        counters = self.fleet.tunnel.counters().items()
        return sum(each.wire_bytes for (src, dst), each in counters if src == region and dst != WITNESS)

    def _said(self, log: str, word: str) -> int:
        path: Path = self.fleet.setup.folder / f"{log}.log"
        return path.read_text(encoding="utf-8", errors="replace").count(word) if path.exists() else 0

    def until(self, ready: Callable[[], bool], limit_s: float, what: str) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > deadline:
                raise StuckError(f"{what} did not come within {limit_s:.0f} s")
            time.sleep(POLL_S)
