"""Two samples of the counters of one port."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.doctor.case import Case
from isthmus.doctor.facts.network import Counters

__all__ = ["Growth", "growths", "single_samples"]


@dataclass(frozen=True, slots=True)
class Growth:
    """First and last sample of one port; seconds is None when the input does not time them."""

    first: Counters
    last: Counters
    seconds: float | None

    def of(self, name: str) -> int:
        """Growth of a counter; 0 when it was reset or is missing in one sample."""
        if name not in self.first.values or name not in self.last.values:
            return 0
        return max(0, self.last.values[name] - self.first.values[name])

    def rate(self, name: str) -> float | None:
        """Growth a second, or None without times."""
        return self.of(name) / self.seconds if self.seconds else None

    @property
    def port(self) -> str:
        """What the tool calls the port."""
        return "/".join(part for part in (self.last.device, self.last.port) if part)


def _grouped(case: Case) -> dict[tuple[str, str, str, str], list[Counters]]:
    grouped: dict[tuple[str, str, str, str], list[Counters]] = defaultdict(list)
    for sample in case.of(Counters):
        grouped[(sample.at.host, sample.tool, sample.device, sample.port)].append(sample)
    return grouped


def growths(case: Case) -> Iterator[Growth]:
    """Ports that were sampled at least twice."""
    for samples in _grouped(case).values():
        if len(samples) > 1:
            first, last = samples[0], samples[-1]
            timed = first.time_s is not None and last.time_s is not None and last.time_s > first.time_s
            yield Growth(first, last, (last.time_s or 0.0) - (first.time_s or 0.0) if timed else None)


def single_samples(case: Case) -> Iterator[Counters]:
    """Ports that were sampled once: absolute counts, since nobody knows when."""
    for samples in _grouped(case).values():
        if len(samples) == 1:
            yield samples[0]
