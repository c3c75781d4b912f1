"""Facts from benchmarks."""

from dataclasses import dataclass

from isthmus.doctor.text import Place

__all__ = ["BandwidthRow", "BenchmarkTable", "CopyBandwidth", "NicScaling", "PairBandwidth", "RankTiming", "RdmaBandwidth"]


@dataclass(frozen=True, slots=True)
class BandwidthRow:
    """One size of an nccl-tests table; better of out-of-place and in-place. GB/s as printed, base 10."""

    at: Place
    size_bytes: int
    busbw_gbyte_per_s: float
    algbw_gbyte_per_s: float
    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTable:
    """One nccl-tests table.

    Attributes:
        ranks: Ranks of the `Using devices` list; 0 when it was cut off.
        hosts: Hosts in that list.
        device: GPU model in that list.
        out_of_bounds: From the last lines; None when cut off.
        average_gbyte_per_s: From the last lines; None when cut off.
        headers: How many lists say `Rank 0`: more than one means several jobs of one rank.
        operation: all_reduce and so on when something names it, else empty.
    """

    at: Place
    rows: tuple[BandwidthRow, ...]
    ranks: int
    hosts: tuple[str, ...]
    device: str
    out_of_bounds: int | None
    average_gbyte_per_s: float | None
    average_at: Place | None
    headers: int
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBandwidth:
    """Bandwidth of one pair of nodes, GB/s."""

    at: Place
    first: str
    second: str
    gbyte_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NicScaling:
    """Bandwidth against the number of NICs, GB/s."""

    at: Place
    label: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaBandwidth:
    """Average of ib_write_bw and its kind, Gb/s, with the port's rate where the output tells."""

    at: Place
    device: str
    gbit_per_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBandwidth:
    """nvbandwidth or bandwidthTest: direction h2d, d2h or d2d, GB/s, GPU."""

    at: Place
    direction: str
    gpu: str
    gbyte_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTiming:
    """Compute time of one step of one rank, seconds, waiting excluded."""

    at: Place
    rank: str
    seconds: float
