"""Facts about GPUs and what joins them inside a node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.doctor.text import Place, decimal

__all__ = [
    "DcgmHealth",
    "DcgmMetric",
    "DiagResult",
    "FabricManager",
    "GpuName",
    "GpuReport",
    "ImexState",
    "NvlinkErrors",
    "NvlinkFirmware",
    "NvlinkStatus",
    "P2pMatrix",
    "TopoMatrix",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One GPU of `nvidia-smi -q`, as the tree it prints: `PCI/GPU Link Info/Link Width/Max` -> `16x`.

    Attributes:
        bus: PCI address, or empty when the header was cut off.
        driver: From the head of the report; empty when cut off.
        values: Path -> (value as printed, line). Old and new names of one thing are brought to the new name.
    """

    at: Place
    bus: str
    driver: str
    values: Mapping[str, tuple[str, int]]

    def word(self, path: str) -> str:
        """The value, or empty when it is absent or printed as not available."""
        value = self.values.get(path, ("", 0))[0]
        return "" if value.strip("[] ") in {"N/A", "Not Supported", "Unknown Error", "Unknown"} else value

    def number(self, path: str) -> float | None:
        """The leading number of the value (`16x` -> 16, `33 C` -> 33), or None."""
        match = re.match(r"[-+]?[\d.,]+", self.word(path))
        return decimal(match.group()) if match else None

    def place(self, path: str) -> Place:
        """Evidence for one value."""
        if path not in self.values:
            return self.at
        value, line = self.values[path]
        return Place(self.at.host, self.at.file, line, f"{path.rsplit('/', 1)[-1]} : {value}")

    @property
    def name(self) -> str:
        """Model, e.g. `NVIDIA H100 80GB HBM3`; empty when cut off."""
        return self.word("Product Name")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """A line of `nvidia-smi -L`, or of another tool that lists GPUs."""

    at: Place
    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoMatrix:
    """`nvidia-smi topo -m`.

    Attributes:
        gpus: Row names of GPUs that were printed.
        columns: Column names, GPUs and NICs.
        cells: (row, column) -> `NV18`, `PIX`, ... (without `X`).
        numa: GPU -> NUMA node, where printed.
        legend: NIC0 -> mlx5_0.
        complete: Every GPU of the header has a row of full length.
    """

    at: Place
    gpus: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    places: Mapping[str, Place]
    affinity: Mapping[str, str]
    numa: Mapping[str, str]
    legend: Mapping[str, str]
    complete: bool

    @property
    def nics(self) -> tuple[str, ...]:
        """Columns that are NICs."""
        return tuple(name for name in self.columns if not name.startswith("GPU"))


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pMatrix:
    """`nvidia-smi topo -p2p`: (row, column) -> OK, CNS, GNS, TNS, NS, U, DR."""

    at: Place
    gpus: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkStatus:
    """One GPU of `nvidia-smi nvlink -s`: link -> GB/s, or None when inactive."""

    at: Place
    gpu: str
    name: str
    links: Mapping[int, float | None]
    places: Mapping[int, Place]
    all_inactive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkErrors:
    """Error counters of one GPU's NVLinks: (link, counter) -> count; and bit error rates."""

    at: Place
    gpu: str
    counts: Mapping[tuple[int, str], int]
    rates: Mapping[tuple[int, str], float]
    places: Mapping[tuple[int, str], Place]
    time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkFirmware:
    """One GPU of `nvidia-smi nvlink --info`: component -> version."""

    at: Place
    gpu: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricManager:
    """What the fabric manager or systemd says: state is running, failed, inactive, nothing-to-do or error."""

    at: Place
    state: str
    version: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImexState:
    """`nvidia-imex-ctl -N`: the state of the domain, or of one node of it."""

    at: Place
    node: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagResult:
    """One test of `dcgmi diag`: Pass, Fail, Warn or Skip, with what it says."""

    at: Place
    test: str
    result: str
    gpus: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmHealth:
    """One line of `dcgmi health -c`: what is wrong with a subsystem of a GPU."""

    at: Place
    gpu: str
    system: str
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmMetric:
    """One sample of dcgm-exporter or `dcgmi dmon`: a field of one GPU or NVSwitch."""

    at: Place
    name: str
    entity: str
    model: str
    value: float
