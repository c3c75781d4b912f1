"""Facts about the host: clocks, limits, CPUs, modules, settings, software versions."""

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.doctor.text import Place

__all__ = [
    "ClockState",
    "CpuFrequency",
    "Firewall",
    "HostSetting",
    "NumaMap",
    "RankBinding",
    "SharedMemory",
    "TreeView",
    "Version",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """What a time daemon says of this host's clock.

    Attributes:
        tool: chronyc, ntpq, ptp4l, pmc or timedatectl.
        synchronised: None when the output does not tell.
        offset_s: Against the chosen source.
        bound_s: Offset plus what the path and the source may add; None when only the offset is known.
    """

    at: Place
    tool: str
    synchronised: bool | None
    offset_s: float | None
    bound_s: float | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFrequency:
    """Governor and speeds of one CPU or of all; Hz."""

    at: Place
    cpu: str
    governor: str
    current_hz: float | None
    limit_hz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetting:
    """A named setting of the host: `ulimit -l`, `module nvidia_peermem`, `sysctl NAME`, `cmdline`, `file /etc/nccl.conf`."""

    at: Place
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Size of /dev/shm in bytes, and whether the host is a container (None: unknown)."""

    at: Place
    size_bytes: int
    container: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaMap:
    """`numactl -H`: node -> CPUs."""

    at: Place
    cpus: Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBinding:
    """CPUs that a process may run on (`taskset -cp`, Cpus_allowed_list), with its GPU where named."""

    at: Place
    process: str
    gpu: str
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """lstopo: what hangs under which package; `flat` when GPUs or NICs hang directly under one bridge without depth."""

    at: Place
    packages: int
    numa_nodes: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    shared_bridge: bool
    virtual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """A chain of iptables or nft whose default is to drop, or a rule that drops or rejects."""

    at: Place
    chain: str
    policy: str
    accepts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Version of a piece of software on this host: nccl, driver, cuda, kernel, ofed, fabricmanager, torch-nccl, image."""

    at: Place
    software: str
    version: str
    rank: str
