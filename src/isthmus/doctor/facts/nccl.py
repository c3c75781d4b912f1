"""Facts from NCCL, torch and the RAS client."""

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.doctor.text import Place

__all__ = ["EnvSetting", "GdrState", "NcclEvent", "NcclInterfaces", "NcclNics", "RasReport", "TopologyFile", "Watchdog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclEvent:
    """One line that a rule looks at; `kind` is a word of the NCCL reader.

    Attributes:
        process: `host:pid` when the line has it.
        values: What was taken from the line: status, vendor, peer, device, why, ...
    """

    at: Place
    kind: str
    process: str
    text: str
    values: Mapping[str, str]
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNics:
    """`NET/IB : Using ...`: (name, port, link layer) of every NIC, in order."""

    at: Place
    process: str
    nics: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclInterfaces:
    """IP interfaces that NCCL chose; use is bootstrap or data."""

    at: Place
    process: str
    use: str
    interfaces: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GdrState:
    """GPUDirect RDMA for one NIC (and GPU); distance as NCCL prints it, None when it does not."""

    at: Place
    process: str
    enabled: bool
    nic: str
    gpu: str
    distance: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchdog:
    """torch's watchdog caught a collective: who, in which process group, at which sequence number."""

    at: Place
    rank: str
    group: str
    sequence: int
    operation: str
    elements: str
    last_completed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RasReport:
    """One statement of ncclras: kind is ok, dead, unresponsive, missing, mismatch or incomplete."""

    at: Place
    kind: str
    what: str
    node: str
    rank: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSetting:
    """One variable as it was set; `scope` says by whom (a rank, a file), `line` may hold several."""

    at: Place
    name: str
    value: str
    scope: str
    unset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFile:
    """An NCCL topology XML: addresses, NUMA nodes, GPUs without NVLink; coherent: a GPU has a C2C link."""

    at: Place
    addresses: frozenset[str]
    numa: frozenset[str]
    gpus: int
    nics: int
    gpu_addresses: frozenset[str]
    gpus_without_nvlink: tuple[str, ...]
    coherent: bool
    architectures: frozenset[int]
    fragment: bool
    graph: bool
    shape: tuple[str, ...]
