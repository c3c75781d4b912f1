"""The host: limits, shared memory, CPU speed, NUMA, modules, sysctls, kernel command line, firewall, versions, lstopo."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.host import CpuFrequency, Firewall, HostSetting, NumaMap, RankBinding, SharedMemory, TreeView, Version
from isthmus.doctor.text import Document, Place, real

__all__ = ["cpu_list", "read_cpus", "read_lstopo", "read_settings"]

_LIMIT = re.compile(r"(?P<name>max locked memory|open files|stack size)\s*\([^)]*?(?P<option>-[lns])\)\s+(?P<value>\S+)")
_PROC_LIMIT = re.compile(r"Max (?P<name>locked memory|open files|stack size)\s+(?P<value>\S+)\s+\S+")
_ASKED_LIMIT = re.compile(r"(?:\$|#|>)\s*ulimit (?P<option>-[Hlns]+)\s*$")
_OPTIONS = {"max locked memory": "-l", "locked memory": "-l", "open files": "-n", "stack size": "-s"}
_SHM = re.compile(r"\S+\s+(?P<size>[\d.]+)(?P<unit>[KMGT]?i?B?)\s+\S+\s+\S+\s+\d+%\s+/dev/shm\s*$")
_SYSCTL = re.compile(r"(?P<name>(?:net|kernel|vm|fs)\.[\w.]+)\s*=\s*(?P<value>.+?)\s*$")
_MODULE = re.compile(
    r"(?P<name>nvidia_peermem|nv_peer_mem|nvidia_uvm|nvidia_drm|nvidia|ib_core|mlx5_core|mlx5_ib|efa|bnxt_re|irdma)\s+(?P<size>\d+)\s+(?P<users>\d+)"
)
_CMDLINE = re.compile(r"(?:BOOT_IMAGE=\S+|root=\S+) .*")
_CONF = re.compile(r"\s*(?P<name>RemoveIPC)\s*=\s*(?P<value>\w+)", re.IGNORECASE)
_VIRT = re.compile(r"(?:Hypervisor vendor|Virtualization type|systemd-detect-virt)\s*:\s*(?P<value>\S+)")
_SCALING = re.compile(r"\S*/cpu(?P<cpu>\d+)/cpufreq/scaling_governor[:=\s]+(?P<value>\w+)")
_CLOCKSOURCE = re.compile(r"(?:current_clocksource[:=\s]+|[Cc]locksource: Switched to clocksource )(?P<value>[\w-]+)")
_UNSTABLE = re.compile(r"clocksource: .*(?P<value>Marking clocksource '?tsc'? .*unstable|TSC.*unstable)", re.IGNORECASE)
_CHAIN = re.compile(r"Chain (?P<chain>INPUT|FORWARD|OUTPUT) \(policy (?P<policy>ACCEPT|DROP|REJECT)")
_NFT_CHAIN = re.compile(r"hook (?P<chain>input|forward|output).*policy (?P<policy>accept|drop)")
_S_CHAIN = re.compile(r"-P (?P<chain>INPUT|FORWARD|OUTPUT) (?P<policy>ACCEPT|DROP)")
_ACCEPT_ALL = re.compile(r"\bACCEPT\b.*(?:0\.0\.0\.0/0|anywhere)\s+(?:0\.0\.0\.0/0|anywhere)\s*$|-A INPUT -j ACCEPT\s*$")
_UNAME = re.compile(r"Linux (?P<host>\S+) (?P<kernel>\d+\.\d+\S*) .*(?:SMP|GNU/Linux)")
_DRIVER = re.compile(r"NVRM version: NVIDIA UNIX (?P<open>Open )?(?:\S+ )*?Kernel Module(?: for \S+)?\s+(?P<version>\d+\.[\d.]+)")
_OFED = re.compile(r"^(?P<version>(?:MLNX_OFED_LINUX|OFED-internal|DOCA\w*)-[\w.:-]+)")
_IMAGE = re.compile(r"(?:image|Image ID|imageID)[: =]+\"?(?P<image>\S+@sha256:[0-9a-f]{12,64})")
_CONTAINER = re.compile(r"^/(?:docker|kubepods|\.dockerenv)|/\.dockerenv")
_UNIT_BYTES = {"": 2**10, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read_settings(document: Document) -> Iterator[HostSetting | SharedMemory | Firewall | Version]:
    """Line by line; each line says at most one thing."""
    container = True if _CONTAINER.search(document.text[:200_000]) and "/dev/shm" in document.text else None
    asked = ""
    for index, line in enumerate(document.lines):
        if asked and line.strip():
            yield HostSetting(at=document.place(index), name=f"ulimit {asked}", value=line.strip())
            asked = ""
        elif found := _ASKED_LIMIT.search(line):
            asked = "-" + found["option"].strip("-H")
        else:
            yield from _setting(document, index, line, container)


def _setting(
    document: Document, index: int, line: str, container: bool | None
) -> Iterator[HostSetting | SharedMemory | Firewall | Version]:
    at = document.place(index)
    if found := _LIMIT.match(line) or _PROC_LIMIT.match(line):
        value = found["value"]
        if value.isdecimal() and line.rstrip().endswith("bytes"):  # /proc counts bytes, ulimit KiB
            value = str(int(value[:18]) // 1024)
        yield HostSetting(at=at, name=f"ulimit {_OPTIONS[found['name']]}", value=value)
    elif "/dev/shm" in line and (found := _SHM.match(line.strip())):
        size = real(found["size"]) * _UNIT_BYTES[found["unit"].rstrip("iB") if found["unit"] != "B" else "B"]
        yield SharedMemory(at=at, size_bytes=int(size), container=container or (True if line.startswith("shm ") else None))
    elif found := _SYSCTL.match(line.strip()):
        yield HostSetting(at=at, name=f"sysctl {found['name']}", value=found["value"])
    elif found := _MODULE.match(line):
        yield HostSetting(at=at, name=f"module {found['name']}", value=found["users"])
    elif line.startswith(("BOOT_IMAGE=", "root=")) and _CMDLINE.match(line):
        yield HostSetting(at=at, name="cmdline", value=line.strip())
    elif found := next((match for pattern, _ in _NAMED if (match := pattern.search(line))), None):
        name = next(name for pattern, name in _NAMED if pattern.search(line))
        yield HostSetting(at=at, name=name, value=found["value"])
    else:
        yield from _walls(document, index, line)
        yield from _software(document, index, line)


_NAMED = ((_CONF, "logind RemoveIPC"), (_VIRT, "hypervisor"), (_CLOCKSOURCE, "clocksource"), (_UNSTABLE, "clocksource"))


def _walls(document: Document, index: int, line: str) -> Iterator[Firewall]:
    if found := _CHAIN.match(line) or _S_CHAIN.match(line.strip()) or _NFT_CHAIN.search(line):
        policy = found["policy"].lower()
        rest = document.lines[index + 1 : index + 40]
        accepts = any(
            _ACCEPT_ALL.search(rule)
            for rule in rest[: next((n for n, rule in enumerate(rest) if rule.startswith("Chain ")), len(rest))]
        )
        yield Firewall(at=document.place(index), chain=found["chain"].lower(), policy=policy, accepts=accepts)


def _software(document: Document, index: int, line: str) -> Iterator[Version | HostSetting]:
    at = document.place(index)
    if "NVRM version" in line and (found := _DRIVER.search(line)):
        yield Version(at=at, software="driver", version=found["version"], rank="")
        yield HostSetting(at=at, name="driver type", value="open" if found["open"] else "closed")
    elif line.startswith("Linux ") and (found := _UNAME.match(line)):
        yield Version(at=at, software="kernel", version=found["kernel"], rank="")
    elif found := _OFED.match(line.strip()):
        yield Version(at=at, software="ofed", version=found["version"].rstrip(":"), rank="")
    elif "sha256:" in line and (found := _IMAGE.search(line)):
        yield Version(at=at, software="image", version=found["image"], rank="")


_CPU_HEAD = re.compile(r"analyzing CPU (?P<cpu>\S+):")
_GOVERNOR = re.compile(r"The governor \"(?P<governor>\w+)\"")
_CURRENT = re.compile(r"current CPU frequency(?: is|:)\s*(?P<value>[\d.]+) (?P<unit>[MG]Hz)")
_LIMITS = re.compile(r"hardware limits:\s*[\d.]+ [MG]Hz - (?P<value>[\d.]+) (?P<unit>[MG]Hz)")
_HZ = {"MHz": 1e6, "GHz": 1e9}
_NODE_CPUS = re.compile(r"node (?P<node>\d+) cpus:(?P<cpus>[\d ]*)$")
_TASKSET = re.compile(r"pid (?P<pid>\d+)'s current affinity list: (?P<cpus>[\d,\-]+)")
_ALLOWED = re.compile(r"Cpus_allowed_list:\s*(?P<cpus>[\d,\-]+)")
_RANK_CPUS = re.compile(r"rank[ =:]*(?P<rank>\d+).*?(?:gpu|GPU)[ =:]*(?P<gpu>\d+).*?cpus?[ =:]*(?P<cpus>\d[\d,\-]*)")


def cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` -> {0, 1, 2, 3, 8}; ranges are cut at 8,192 CPUs."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, min(last, first + 8192) + 1))
    return frozenset(found)


def read_cpus(document: Document) -> Iterator[CpuFrequency | NumaMap | RankBinding]:
    """cpupower and scaling_governor, numactl -H, bindings of processes."""
    nodes: dict[int, frozenset[int]] = {}
    at: Place | None = None
    cpu, start, values = "", 0, dict[str, str | float]()
    for index, line in enumerate(document.lines):
        if found := _CPU_HEAD.match(line):
            yield from _cpu(document, start, cpu, values)
            cpu, start, values = found["cpu"], index, {}
        elif cpu and (found := _GOVERNOR.search(line)):
            values["governor"], start = found["governor"], index
        elif cpu and (found := _CURRENT.search(line)):
            values["current"] = real(found["value"]) * _HZ[found["unit"]]
        elif cpu and (found := _LIMITS.search(line)):
            values["limit"] = real(found["value"]) * _HZ[found["unit"]]
        elif found := _SCALING.search(line):
            yield CpuFrequency(
                at=document.place(index), cpu=found["cpu"], governor=found["value"], current_hz=None, limit_hz=None
            )
        elif found := _NODE_CPUS.match(line.rstrip()):
            at = at or document.place(index)
            nodes[int(found["node"])] = frozenset(int(word) for word in found["cpus"].split() if len(word) < 7)
        elif found := _TASKSET.search(line) or _ALLOWED.match(line) or _RANK_CPUS.search(line):
            groups = found.groupdict()
            yield RankBinding(
                at=document.place(index),
                process=groups.get("pid") or groups.get("rank") or document.labels.get(index, ""),
                gpu=groups.get("gpu") or "",
                cpus=cpu_list(found["cpus"]),
            )
    yield from _cpu(document, start, cpu, values)
    if nodes and at:
        yield NumaMap(at=at, cpus=nodes)


def _cpu(document: Document, index: int, cpu: str, values: dict[str, str | float]) -> Iterator[CpuFrequency]:
    if values:
        current, limit = values.get("current"), values.get("limit")
        yield CpuFrequency(
            at=document.place(index),
            cpu=cpu,
            governor=str(values.get("governor", "")),
            current_hz=current if isinstance(current, float) else None,
            limit_hz=limit if isinstance(limit, float) else None,
        )


_MACHINE = re.compile(r"\s*Machine \((?P<size>[^)]*)\)")
_LSTOPO_PCI = re.compile(r"(?P<indent>\s*)PCI (?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d) \((?P<kind>[^)]+)\)")
_GPU_KINDS = frozenset(["3D", "VGA", "Display"])
_NIC_KINDS = frozenset(["InfiniBand", "Ethernet", "Network"])


def read_lstopo(document: Document) -> Iterator[TreeView]:
    """lstopo's text: how many packages and NUMA nodes, and whether each GPU hangs below a bridge of its own with a NIC."""
    start = next((index for index, line in enumerate(document.lines) if "Machine (" in line and _MACHINE.match(line)), -1)
    if start < 0:
        return
    text = document.lines[start:]
    gpus: list[str] = []
    nics: list[str] = []
    path: list[tuple[int, int]] = []
    bridges: dict[str, set[int]] = {"gpu": set(), "nic": set()}
    for number, line in enumerate(text):
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        if "Bridge" in line:
            path.append((indent, number))
        elif found := _LSTOPO_PCI.match(line):
            kind = "gpu" if found["kind"] in _GPU_KINDS else "nic" if found["kind"] in _NIC_KINDS else ""
            if kind:
                (gpus if kind == "gpu" else nics).append(found["address"])
                bridges[kind].update(node for _, node in path[1:])
    whole = "\n".join(text)
    yield TreeView(
        at=document.place(start),
        packages=len(re.findall(r"Package L#\d+", whole)),
        numa_nodes=len(re.findall(r"NUMANode L#\d+", whole)),
        gpus=tuple(gpus),
        nics=tuple(nics),
        shared_bridge=bool(bridges["gpu"] & bridges["nic"]),
        virtual="PCIBridge" not in whole,
    )
