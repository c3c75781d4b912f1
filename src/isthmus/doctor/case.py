"""What the rules look at: all facts of all files, by type and by host, and what is expected of the machine."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from isthmus.doctor.facts.bench import BenchmarkTable
from isthmus.doctor.facts.gpu import GpuName, GpuReport, NvlinkStatus
from isthmus.doctor.facts.host import Version
from isthmus.doctor.text import Place

__all__ = ["Case", "Expected", "mode", "numbers"]


class _Placed(Protocol):
    @property
    def at(self) -> Place: ...


T = TypeVar("T", bound=_Placed)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a described fabric says of a node; None where it says nothing.

    Attributes:
        busbw_gbyte_per_s: A table -> the bus bandwidth that its largest size should reach, or None.
        lossless_wan_bytes: Rate times RTT of the longest WAN link, bytes.
    """

    gpus: int | None = None
    nics: int | None = None
    nic_rate_gbit_per_s: float | None = None
    gpu_model: str = ""
    wan_rtt_s: float | None = None
    wan_rate_bytes_per_s: float | None = None
    busbw_gbyte_per_s: Callable[[BenchmarkTable], float | None] | None = None
    source: str = ""


@dataclass(slots=True)
class Case:
    """Facts in the order they were read."""

    facts: dict[type[Any], list[Any]] = field(default_factory=dict[type[Any], list[Any]])
    grouped: dict[type[Any], dict[str, list[Any]]] = field(default_factory=dict[type[Any], dict[str, list[Any]]], repr=False)
    expected: Expected = field(default_factory=Expected)
    nccl: tuple[int, ...] | None = None

    def add(self, facts: Iterable[Any]) -> None:
        """Take in what a reader made."""
        self.grouped.clear()
        for fact in facts:
            kind = cast("type[Any]", type(fact))
            self.facts.setdefault(kind, []).append(fact)

    def of(self, kind: type[T]) -> list[T]:
        """All facts of one type."""
        return cast("list[T]", self.facts.get(kind, []))

    def hosts(self, kind: type[T]) -> dict[str, list[T]]:
        """Facts of one type by host; one entry with an empty name when no host is known."""
        key = cast("type[Any]", kind)
        if key not in self.grouped:
            grouped: dict[str, list[Any]] = defaultdict(list)
            for fact in self.of(kind):
                grouped[fact.at.host].append(fact)
            self.grouped[key] = dict(grouped)
        return cast("dict[str, list[T]]", self.grouped[key])

    def model(self, host: str) -> str:
        """GPU model of a host, or empty: from any tool that names it."""
        names = [report.name for report in self.hosts(GpuReport).get(host, []) if report.name]
        names += [name.name for name in self.hosts(GpuName).get(host, [])]
        names += [status.name for status in self.hosts(NvlinkStatus).get(host, []) if status.name]
        return names[0] if names else ""

    def nccl_version(self, host: str = "") -> tuple[int, ...] | None:
        """The version given on the command line, or read from this host's log, or from any."""
        if self.nccl:
            return self.nccl
        versions = [v for v in self.of(Version) if v.software == "nccl" and v.rank != "image"]
        near = [v for v in versions if v.at.host == host] or versions
        return numbers(near[0].version) if near else None


def numbers(version: str) -> tuple[int, ...]:
    """`2.27.3+cuda12` -> (2, 27, 3)."""
    return tuple(
        int(part) for part in version.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0].split(".")[:3] if part.isdecimal()
    )


def mode(values: Iterable[K]) -> K | None:
    """The value of more than half; None when there is no such value."""
    counted = Counter(values)
    if not counted:
        return None
    value, times = counted.most_common(1)[0]
    return value if times * 2 > sum(counted.values()) else None
