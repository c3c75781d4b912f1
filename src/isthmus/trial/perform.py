"""Play scripted faults against a running tunnel, watch the wire meanwhile, and put everything back."""

import signal
import time
from typing import assert_never

from isthmus.emulate import Tunnel
from isthmus.trial.faults import Fault, describe
from isthmus.trial.launch import Ranks

__all__ = ["FaultPlayer"]


class FaultPlayer:
    """Call `play` often while the ranks run; faults count from the first training step it sees."""

    def __init__(self, tunnel: Tunnel, ranks: Ranks, faults: tuple[Fault, ...]) -> None:
        self._tunnel, self._ranks = tunnel, ranks
        self._waiting = list(faults)
        self._active: list[tuple[float, Fault]] = []
        self._first_step_at: float | None = None
        self._wire_at_first_step: dict[tuple[str, str], int] = {}
        self._wire_steps = 0
        self._started_at = time.monotonic()
        self._seen: list[dict[str, object]] = []
        # As they are without faults; routes over a third region have counters but no link of their own.
        self._links = {ends: tunnel.link(*ends) for ends in tunnel.links()}

    def play(self) -> None:
        """Begin and end what is due."""
        now = time.monotonic()
        if self._first_step_at is None:
            steps = self._ranks.steps_seen()
            if steps == 0:
                return
            self._first_step_at, self._wire_steps = now, steps
            self._wire_at_first_step = self._wire()
        elapsed = now - self._first_step_at
        while self._waiting and self._waiting[0].at_s <= elapsed:
            fault = self._waiting.pop(0)
            self._begin(fault)
            if fault.duration_s is not None:
                self._active.append((elapsed + fault.duration_s, fault))
        for ends_at, fault in [item for item in self._active if item[0] <= elapsed]:
            self._active.remove((ends_at, fault))
            self._end(fault)

    def restore(self) -> None:
        """End whatever is still going on."""
        for _, fault in self._active:
            self._end(fault)
        self._active.clear()

    def seconds(self) -> float:
        """Since this run began."""
        return time.monotonic() - self._started_at

    def seen(self) -> list[dict[str, object]]:
        """What was played, for the results."""
        return self._seen + [
            {"at_s": fault.at_s, "what": fault.text, "seen": "not reached: the run ended first"} for fault in self._waiting
        ]

    def wire_bytes(self) -> tuple[int, int]:
        """(IP bytes on the busiest region's uplink since the first step was seen, number of that step)."""
        leaving: dict[str, int] = {}
        for (src, dst), total in self._wire().items():
            leaving[src] = leaving.get(src, 0) + total - self._wire_at_first_step.get((src, dst), total)
        return max(leaving.values()), self._wire_steps

    def _wire(self) -> dict[tuple[str, str], int]:
        return {ends: counters.wire_bytes for ends, counters in self._tunnel.counters().items()}

    def _begin(self, fault: Fault) -> None:
        step = self._ranks.steps_seen()
        self._seen.append({"at_s": fault.at_s, "what": fault.text, "seen": f"{describe(fault)}, at step {step}"})
        match fault.kind:
            case "down":
                self._tunnel.set_link(fault.regions[0], fault.regions[1], up=False)
            case "slow":
                self._tunnel.set_link(fault.regions[0], fault.regions[1], rate_bytes_per_s=fault.value)
            case "lossy":
                self._tunnel.set_link(fault.regions[0], fault.regions[1], loss=fault.value or 0.0)
            case "freeze":
                self._ranks.signal_region(fault.regions[0], signal.SIGSTOP)
            case "kill":
                self._ranks.signal_region(fault.regions[0], signal.SIGKILL)
            case _:
                assert_never(fault.kind)

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case "down" | "slow" | "lossy":
                usual = self._links[fault.regions[0], fault.regions[1]]
                self._tunnel.set_link(
                    fault.regions[0], fault.regions[1], up=True, rate_bytes_per_s=usual.rate_bytes_per_s, loss=usual.loss
                )
            case "freeze":
                self._ranks.signal_region(fault.regions[0], signal.SIGCONT)
            case "kill":
                pass
            case _:
                assert_never(fault.kind)
