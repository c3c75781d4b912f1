"""Strike a running fleet with one fault, undo it, and wait until all regions are together again."""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.checks import Happened
from chaos.faults import LAST_STEPS, Fault, Kind, side_of
from chaos.fleet import STEP_S, WITNESS, Fleet, inner_steps
from chaos.history import Follower
from isthmus.emulate import EmulatedLink
from isthmus.runtime.checkpoint import latest

__all__ = ["Player", "StuckError"]

START_LIMIT_S, HEAL_LIMIT_S, HANG_LIMIT_S, END_LIMIT_S = 60.0, 45.0, 20.0, 240.0
QUIET_ROUNDS = 2

LOSS = 0.05
SYNC_BYTES = 15_000  # on the wire since the window's end: a sync, not signs of life
POLL_S = 0.01


class StuckError(RuntimeError):
    """The fleet did not do in time what it must; the message says what."""


class Player:
    """Plays faults one after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._follower = Follower(fleet.metrics)
        self._regions = frozenset(fleet.scenario.regions)

    def begin(self) -> None:
        """Wait until all regions have begun.

        Raises:
            StuckError: As in all other methods, where that takes too long.
        """
        self._together(time.time(), START_LIMIT_S, "the first rounds")

    def play(self, fault: Fault) -> Happened:
        """One fault, from quiet to quiet."""
        began_s = self._strike(fault)
        what = f"healing of fault {fault.number} ({fault.kind} {fault.region})"
        return Happened(fault=fault, began_s=began_s, healed_s=self._together(time.time(), HEAL_LIMIT_S, what))

    def finish(self) -> None:
        """Name the last step, and wait for the end of all ranks."""
        if self.fleet.setup.calm_steps is None:
            self.fleet.end_at(LAST_STEPS + max(seen.step for seen in self._follower.read().values()))
        self.until(lambda: not any(map(self.fleet.alive, self._regions)), END_LIMIT_S, "the end of all ranks")
        self._follower.close()

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
            first, *_, last = self.fleet.scenario.regions
            if fault.region == last:  # it calls all others, nobody comes to its door: at one of theirs, then
                key = (first, fault.rank % self.fleet.scenario.regions[first])
            process, log = self.fleet.proxies[key], f"proxy-{key[0]}-{key[1]}"
        before = self._said(log, "flipped")
        process.send_signal(signal.SIGUSR1)
        self.until(lambda: self._said(log, "flipped") > before, HEAL_LIMIT_S, f"a bit to flip ({fault.kind})")
        return began_s

    def _aim(self, fault: Fault) -> None:
        """Wait for the phase: the middle of a window, or a sync on the wire."""
        key, inner = (fault.region, 0), inner_steps(self.fleet.scenario)
        if fault.kind == "kill-between":
            before = self._step(key)
            self.until(lambda: self._step(key) != before and self._step(key) % inner == inner // 2, HEAL_LIMIT_S, "half a window")
            time.sleep(STEP_S / 2)
            return
        self.until(lambda: self._step(key) % inner == inner - 1, HEAL_LIMIT_S, "the end of a window")
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
        side = side_of(fault, list(self.fleet.scenario.regions)) if fault.kind == "cut" else frozenset({fault.region})
        ends = [(src, dst) for src, dst in tunnel.links() if src in side and dst not in side and dst != WITNESS]
        if fault.value % 2:  # for a cut: `no_store`
            ends += [(region, WITNESS) for region in sorted(side)]
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
        began_s, folder, key = time.time(), self.fleet.checkpoints, (fault.region, 0)
        filler = folder / "filler"
        failed, before = self._follower.read()[key].failed_checkpoints, latest(folder, fault.region)
        with open(filler, "wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        try:
            what = f"a checkpoint of {fault.region} that fails for want of room"
            self.until(lambda: self._follower.read()[key].failed_checkpoints > failed, HEAL_LIMIT_S, what)
            time.sleep(fault.duration_s)
            after = latest(folder, fault.region)
        finally:
            filler.unlink()
        if before is not None and (after is None or after.step < before.step):
            raise StuckError(f"the checkpoint of step {before.step} did not outlive the full disk")
        return began_s

    def _together(self, since_s: float, limit_s: float, what: str) -> float:
        """Wait for QUIET_ROUNDS rounds of all regions after `since_s`; when the last was committed. No rank may end meanwhile."""
        last_s = 0.0

        def quiet() -> bool:
            nonlocal last_s
            seen = self._follower.read()
            gone = [f"{region}-{rank}" for region in sorted(self._regions) for rank in self.fleet.gone(region)]
            if gone:
                raise StuckError(f"{what}: {', '.join(gone)} ended by itself")
            rounds = [seen[region, 0].rounds if (region, 0) in seen else () for region in self._regions]
            full = [[t for t, who in each if t > since_s and who == self._regions] for each in rounds]
            if any(len(times) < QUIET_ROUNDS for times in full):
                return False
            last_s = min(times[QUIET_ROUNDS - 1] for times in full)
            return True

        self.until(quiet, limit_s, what)
        return last_s

    def _step(self, key: tuple[str, int]) -> int:
        return self._follower.read()[key].step

    def _sent(self, region: str) -> int:
        counters = self.fleet.tunnel.counters().items()
        return sum(each.wire_bytes for (src, dst), each in counters if src == region and dst != WITNESS)

    def _said(self, log: str, word: str) -> int:
        path: Path = self.fleet.setup.folder / f"{log}.log"
        return path.read_text(encoding="utf-8", errors="replace").count(word) if path.exists() else 0

    def until(self, ready: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait until `ready`, at most so long."""
        deadline = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > deadline:
                raise StuckError(f"{what} did not come within {limit_s:.0f} s")
            time.sleep(POLL_S)
