"""Which readers look at a text: by words that must occur in it, never by the file's name.

Every reader whose words occur looks at the whole text, so several outputs in one paste are taken apart by the readers
themselves. A text of which no reader makes a fact is refused with a reason.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from isthmus.doctor.readers import (
    bench,
    clocks,
    counters,
    dcgm,
    fabric_manager,
    host,
    kernel,
    nccl,
    nvlink,
    path,
    pci,
    qos,
    ras,
    rdma,
    settings,
    smi_query,
    smi_topo,
    switch,
    topology_xml,
    torch_log,
)
from isthmus.doctor.text import Document

__all__ = ["KINDS", "Kind", "read"]


# What tells a kind although no rule looks at any of its lines: then the file is recognised, with nothing to say.
_MARKS = (
    (
        "kernel log",
        re.compile(r"(?m)^(?:<\d+>)?\[\s*\d+\.\d{3,6}\] \S|^[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \S+ (?:kernel|systemd)"),
    ),
    ("NCCL log", re.compile(r"NCCL (?:INFO|WARN|TRACE|version)|\bnccl(?:System|Internal|Remote|Unhandled|Invalid)\w+")),
    ("torch log", re.compile(r"ProcessGroupNCCL|torch\.distributed|c10d")),
    ("nvidia-smi", re.compile(r"NVIDIA-SMI|NVSMI LOG|nvidia-smi")),
    ("NIC settings", re.compile(r"(?m)^\d+: \S+: <[A-Z,_-]+>|^mlnx_qos -i|DCBX mode")),
    ("port counters", re.compile(r"NIC statistics:|(?m:^ethtool -S)")),
    ("kernel command line", re.compile(r"(?m)^(?:BOOT_IMAGE=|root=|console=|ro )\S* .*=")),
    ("environment", re.compile(r"(?m)^(?:export )?[A-Z][A-Z0-9_]{2,}=")),
    ("DCGM", re.compile(r"dcgmi|DCGM|Diagnostic\s+\|")),
    ("RDMA ports", re.compile(r"ibstat|ibv_devinfo|hca_id|nfiniband")),
    ("switch", re.compile(r"(?m)^\s*(?:Ethernet|swp)\d+\s")),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of outputs.

    Attributes:
        name: What the report calls it.
        words: The reader looks at a text when one of these occurs.
        read: Document -> facts.
    """

    name: str
    words: tuple[str, ...]
    read: Callable[[Document], Iterator[Any]]


KINDS: tuple[Kind, ...] = (
    Kind(
        "nvidia-smi -q",
        ("NVSMI LOG", " Reasons", "Remapped Rows", "ECC Errors", "Retired Pages", "GPU Link Info", "Performance State"),
        smi_query.read_query,
    ),
    Kind("nvidia-smi -L", ("UUID", "Driver Version:"), smi_query.read_gpu_list),
    Kind("nvidia-smi topo -m", ("GPU0", "GPU1"), smi_topo.read_topo),
    Kind("nvidia-smi topo -p2p", (" OK", "\tOK", "CNS", "GNS", "TNS", " NS"), smi_topo.read_p2p),
    Kind("nvidia-smi nvlink", ("Link 0", "Link 1", "links are in", "Firmware Version:"), nvlink.read_nvlink),
    Kind("dcgmi nvlink", ("gpuId", "physicalId", "NVLINK Error Counts", "| Link "), nvlink.read_nvlink_dcgm),
    Kind(
        "kernel log",
        (
            "Xid",
            "PCIe bandwidth",
            "carrier",
            "ink down",
            "ink Down",
            "ink is down",
            "ink is Down",
            "mlx5_core",
            "segfault",
            "nv_get_p2p",
            "fallen off",
            "iommu:",
            "Hypervisor detected",
            "Command line:",
        ),
        kernel.read_kernel,
    ),
    Kind(
        "fabric manager",
        ("abric Manager", "abric manager", "abricmanager", "multicast", "NOTHING_TO_DO", "NVSwitches", "Domain State", "inband"),
        fabric_manager.read_fabric_manager,
    ),
    Kind("lspci", ("LnkSta", "LnkCap", "ACSCtl", " controller", "PCI bridge", "Bridge ["), pci.read_lspci),
    Kind("sysfs PCI", ("/sys/bus/pci", "/sys/devices"), pci.read_sysfs_pci),
    Kind("NCCL log", ("NCCL", "NET/", "ibv_", "CUDA error", "Cuda failure", "coll channels", "MNNVL"), nccl.read_nccl),
    Kind("torch log", ("Watchdog", "last completed", "collective #", "nccl.version()"), torch_log.read_torch),
    Kind(
        "nccl-tests",
        ("busbw", "bus bandwidth", "float", "half", "int", "bfloat16", "Out of bounds", "double"),
        bench.read_nccl_tests,
    ),
    Kind("benchmark", ("BW peak", "NIC", ",", "->", "memcpy", "Bandwidth", "compute"), bench.read_other_benchmarks),
    Kind("RDMA ports", ("CA '", "hca_id", "nfiniband device", "==>", "physical_state", "IB device"), rdma.read_ports),
    Kind("GID table", ("GID", "\tv1", "\tv2", " v1 ", " v2 "), rdma.read_gids),
    Kind("InfiniBand fabric", ("CA  ", "SW  ", "==("), rdma.read_fabric),
    Kind(
        "port counters",
        (
            ":...",
            "ethtool",
            "counters/",
            "_prio",
            "pause",
            "link ",
            "carrier_changes",
            "statistics/",
            "discards",
            "out_of_sequence",
            "_err:",
        ),
        counters.read_counters,
    ),
    Kind(
        "NIC settings", ("trust state", "PFC configuration", "Pause parameters", " mtu ", "/ecn/", "traffic_class"), qos.read_qos
    ),
    Kind("link and optics", ("Operational Info", "Module Info", "BER Info"), qos.read_optics),
    Kind(
        "switch",
        ("PFC0", "PG0", "/0", "STORM", "Profile:", "stuckCount", "status", "ACTION", "rx_pause", "rx-pause"),
        switch.read_switch,
    ),
    Kind(
        "clock",
        ("Leap status", "System time", "Reach", "reach", "ptp4l", "phc2sys", "offsetFromMaster", "portState", "ynchronized"),
        clocks.read_clocks,
    ),
    Kind(
        "host settings",
        (
            "locked memory",
            "open files",
            "stack size",
            "ulimit",
            "/dev/shm",
            " = ",
            "peermem",
            "nv_peer_mem",
            "BOOT_IMAGE",
            "RemoveIPC",
            "ypervisor",
            "detect-virt",
            "irtualization",
            "clocksource",
            "Chain ",
            "hook ",
            "-P INPUT",
            "Linux ",
            "NVRM version",
            "OFED",
            "sha256:",
            "nvidia",
        ),
        host.read_settings,
    ),
    Kind("CPUs", ("analyzing CPU", "scaling_governor", " cpus:", "affinity list", "Cpus_allowed", "rank"), host.read_cpus),
    Kind("lstopo", ("Machine (",), host.read_lstopo),
    Kind("DCGM", ("DCGM_FI_", "test_categories", "|", "Test: "), dcgm.read_dcgm),
    Kind(
        "NCCL RAS",
        (
            "Job summary",
            "Communicators",
            "missing rank",
            "communicators",
            "MISMATCH",
            "INCOMPLETE",
            "considered dead",
            "unresponsive",
        ),
        ras.read_ras,
    ),
    Kind("NCCL topology XML", ("<system", "<pci", "<graphs"), topology_xml.read_topology_xml),
    Kind(
        "path", ("rtt", "icmp_seq", "bytes from", "packet loss", "mss:", "one-way", "oneway", "message too long"), path.read_paths
    ),
    Kind("environment", settings.PREFIXES, settings.read_environment),
)


def _searched(document: Document) -> str:
    """The text to look for words in: tools repeat themselves, each line counts once. JSON may be one long line."""
    return document.text if document.text[:200].lstrip()[:1] in {"{", "["} else "\n".join(set(document.lines))


def read(document: Document) -> list[Any]:
    """All facts of a document; the kinds that gave some are noted on it."""
    facts: list[Any] = []
    text = _searched(document)
    for kind in KINDS:
        if any(word in text for word in kind.words):
            found = list(kind.read(document))
            if found:
                document.kinds.append(kind.name)
                facts += found
    if not facts:
        start = text[:2_000_000]
        known = next((name for name, mark in _MARKS if mark.search(start)), "")
        document.kinds += [f"{known}, nothing in it that a rule looks at"] if known else []
    return facts
