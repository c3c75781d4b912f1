"""What every rank of the comparison trains, whichever system averages it: one model, one pace, one record of events.

A window is K steps, each a wait of a fixed time (an accelerator would compute meanwhile); its first step moves every
parameter, so that there is something to average. Ranks append one JSON object a line to their events file; times are
CLOCK_MONOTONIC, which all processes of the machine share.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

TENSORS, ELEMENTS = 25, 1_000_000  # 100 MB of float32
TOKENS_PER_STEP = 1000


class Trained(torch.nn.Module):
    """25 parameters of 4 MB, equal in all regions at the start, and a small trained layer for systems that want one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        first = torch.randn(ELEMENTS, generator=generator)
        self.bulk = torch.nn.ParameterList(
            torch.nn.Parameter(first.roll(number).clone(), requires_grad=False) for number in range(TENSORS)
        )
        self.small = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.small(x)


@dataclass(slots=True, kw_only=True)
class Settings:
    """One rank's part, from the command line.

    Attributes:
        events: File of JSON lines to append to.
        region: Number of this rank's region.
        address: IPv4 of this rank.
        meeting: host:port where regions find each other, as the system at hand understands it.
        folder: Shared by the ranks of the run.
        steps: Steps of a window.
        step_s: Seconds of a step.
        equal_timeouts_s: All of the system's time-outs, or None for its defaults.
        end_s: Seconds until the rank ends by itself, whatever happens.
    """

    events: Path
    region: int
    address: str
    meeting: str
    folder: Path
    steps: int
    step_s: float
    equal_timeouts_s: float | None
    end_s: float


def read_settings() -> Settings:
    """Read the command line: one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    given = json.loads(parser.parse_args().settings)
    return Settings(**given | {"events": Path(given["events"]), "folder": Path(given["folder"])})


class Record:
    """The events file, and the loop of windows."""

    def __init__(self, settings: Settings, model: Trained) -> None:
        self.settings, self.model = settings, model
        self._stream = open(settings.events, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        generator = torch.Generator().manual_seed(100 + settings.region)
        self._moves = torch.randn(ELEMENTS, generator=generator) * 1e-3
        self._ends_at = time.monotonic() + settings.end_s

    def write(self, event: str, **fields: Any) -> None:
        """Append one line with the time."""
        self._stream.write(json.dumps({"event": event, "t": time.monotonic(), **fields}) + "\n")

    def steps(self, window: int) -> None:
        """Train all steps of a window but the last one's end, which is the sync."""
        self.write("window", window=window)
        for step in range(self.settings.steps):
            begun_s = time.monotonic()
            if step == 0:
                with torch.no_grad():
                    for number, parameter in enumerate(self.model.bulk):
                        parameter.add_(self._moves, alpha=1.0 + 0.1 * ((window + number) % 7))
            time.sleep(max(0.0, begun_s + self.settings.step_s - time.monotonic()))

    def loop(self, sync: Callable[[int], dict[str, Any]]) -> None:
        """Window after window until the time is over; `sync` averages and returns what there is to say about it.

        It returns {"committed": bool, ...}, in the system's own words. What became of the window's training is also
        looked up in the parameters: `kept` is False where they are, bit for bit, those from before the window; `changed`
        is the share of elements that the sync changed: all or none, unless it averaged some and not others.
        """
        self.write("ready")
        # Systems that let an early region take off alone would have the other one begin as a latecomer.
        while not (self.settings.folder / "go").exists():
            time.sleep(0.02)
        window = 0
        while time.monotonic() < self._ends_at:
            before = self._probe()
            self.steps(window)
            own = self._sample()
            self.write("sync", window=window)
            found = sync(window)
            self.write("synced", window=window, **found)
            after = self._probe()
            changed = float((self._sample() != own).float().mean())
            self.write("checked", window=window, hash=after, kept=after != before, changed=changed)
            window += 1

    def _sample(self) -> torch.Tensor:
        """Every 997th element of the bulk parameters."""
        return torch.cat([parameter.detach()[::997] for parameter in self.model.bulk])

    def _probe(self) -> str:
        """Fingerprint of one bulk parameter; they all take the same way."""
        return xxhash.xxh3_64_hexdigest(self.model.bulk[TENSORS // 2].detach().numpy())
