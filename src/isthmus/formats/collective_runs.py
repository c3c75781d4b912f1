"""Measured collectives: one run as every reader gives it, and the YAML in which isthmus keeps runs.

`size_bytes` means what nccl-tests prints: the whole buffer of an all-reduce, broadcast or reduce; what an all-gather
leaves on, and a reduce-scatter or all-to-all takes from, every rank.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from isthmus.documents import Count, Document, RateBytesPerS, load_document
from isthmus.fabric.carriers import InNodeCarrier, NetworkCarrier

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Adapters",
    "Algorithm",
    "Collective",
    "Protocol",
    "Row",
    "Run",
    "RunsDocument",
    "Wiring",
    "bus_factor",
    "read_runs",
]

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all", "send-recv"]
Algorithm = Literal["auto", "ring", "tree", "nvls", "nvls-tree", "collnet", "pat", "pairwise"]
Protocol = Literal["auto", "ll", "ll128", "simple"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True, slots=True)
class Row:
    """One size of one run."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What joins the GPUs of a node: line rate of one GPU per direction; whether its switches add (NVLS)."""

    carrier: InNodeCarrier
    rate_bytes_per_s: float
    adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The network adapters of one node: how many, and the line rate of each per direction."""

    carrier: NetworkCarrier
    count: int
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One collective measured over sizes on one system.

    Attributes:
        name: Of the run.
        source: Who measured; runs of one source are left out together.
        where: File and line, or a place within the source.
        collective: None where the text does not say.
        ranks: None where the text does not say.
        nodes: None where the text does not say.
        in_node: None for one GPU a node, or where the text does not say.
        network: None for one node, or where the text does not say.
        algorithm: What was forced, else `auto`.
        protocol: What was forced, else `auto`.
        gpus_per_process: GPUs that one host process launches on, one after another (`-g` of nccl-tests).
        left_out: Why it is not scored; empty for a run that is.
        rows: Out-of-place times, in order of size.
    """

    name: str
    source: str
    where: str
    collective: Collective | None
    ranks: int | None
    nodes: int | None
    in_node: Wiring | None = None
    network: Adapters | None = None
    algorithm: Algorithm = "auto"
    protocol: Protocol = "auto"
    gpus_per_process: int = 1
    left_out: str = ""
    rows: tuple[Row, ...]


def bus_factor(collective: Collective, ranks: int) -> float:
    """busbw / algbw of nccl-tests (doc/PERFORMANCE.md): 2 (n-1)/n for all-reduce, (n-1)/n for what moves it once, 1 else."""
    match collective:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all":
            return (ranks - 1) / ranks
        case "broadcast" | "reduce" | "send-recv":
            return 1.0


class SourceEntry(Document):
    """Who measured, and where it stands."""

    key: Annotated[str, Field(min_length=1, description="Such as NVIDIA/nccl-tests#309; runs of one key are left out together.")]
    where: str = Field(default="", description="File, lines and commit.")


class WiringEntry(Document):
    """What joins the GPUs of a node."""

    carrier: InNodeCarrier
    rate: RateBytesPerS = Field(gt=0, description="Line rate of one GPU, per direction, such as 450 GB/s.")
    adds: bool = Field(default=False, description="Whether the switches add (NVLS).")


class AdaptersEntry(Document):
    """The adapters of one node."""

    carrier: NetworkCarrier
    adapters: Annotated[Count, Field(ge=1)]
    rate: RateBytesPerS = Field(gt=0, description="Line rate of one adapter, such as 400 Gb/s.")


class RunEntry(Document):
    """One run."""

    name: Annotated[str, Field(min_length=1)]
    source: SourceEntry
    left_out: str = Field(default="", description="Why the run is not scored.")
    gpu: str = ""
    ranks: Annotated[Count, Field(ge=2)]
    nodes: Annotated[Count, Field(ge=1)] | None = None
    in_node: WiringEntry | None = None
    network: AdaptersEntry | None = None
    collective: Collective
    algorithm: Algorithm = "auto"
    protocol: Protocol = "auto"
    gpus_per_process: Annotated[Count, Field(ge=1)] = 1
    note: str = ""
    from_: Literal["time", "busbw"] = Field(default="time", alias="from", description="busbw: times worked out from it.")
    sizes_bytes: list[Annotated[Count, Field(ge=1)]]
    times_us: list[Annotated[float, Field(gt=0)]]

    @model_validator(mode="after")
    def _as_long(self) -> "RunEntry":
        if len(self.sizes_bytes) != len(self.times_us):
            raise ValueError(f"{len(self.sizes_bytes)} sizes_bytes but {len(self.times_us)} times_us, expected as many")
        if not all(isfinite(each) for each in self.times_us):
            raise ValueError("a time is not finite")
        if sorted(set(self.sizes_bytes)) != self.sizes_bytes:
            raise ValueError("sizes_bytes must rise, each once")
        if self.nodes and self.ranks % self.nodes:
            raise ValueError(f"{self.ranks} ranks do not fill {self.nodes} nodes evenly")
        return self


class RunsDocument(Document):
    """`isthmus calibrate` reads it; `measured/collectives.yaml` is one."""

    version: Literal[1]
    runs: list[RunEntry]


def read_runs(path: Path | str) -> tuple[Run, ...]:
    """The runs of a measured YAML file.

    Raises:
        InputError: It cannot be read or is not such a file.
    """
    document, lines = load_document(path, RunsDocument)
    return tuple(_run(each, lines.where(("runs", index))) for index, each in enumerate(document.runs))


def _run(entry: RunEntry, where: str) -> Run:
    wiring, adapters = entry.in_node, entry.network
    return Run(
        name=entry.name,
        source=entry.source.key,
        where=where,
        collective=entry.collective,
        ranks=entry.ranks,
        nodes=entry.nodes,
        in_node=Wiring(carrier=wiring.carrier, rate_bytes_per_s=wiring.rate, adds=wiring.adds) if wiring else None,
        network=Adapters(carrier=adapters.carrier, count=adapters.adapters, rate_bytes_per_s=adapters.rate) if adapters else None,
        algorithm=entry.algorithm,
        protocol=entry.protocol,
        gpus_per_process=entry.gpus_per_process,
        left_out=entry.left_out,
        rows=tuple(Row(size, micros * 1e-6) for size, micros in zip(entry.sizes_bytes, entry.times_us, strict=True)),
    )
