"""NCCL logs of every version, with or without their prefix: events, NICs, interfaces, GPUDirect state, settings, versions.

A line is recognised by its message, not by its prefix: pastes lose `NCCL INFO`, pods and brackets. Old and new wordings
of one message become one event.
"""

import re
from collections.abc import Callable, Iterator

from isthmus.doctor.facts.host import Version
from isthmus.doctor.facts.nccl import EnvSetting, GdrState, NcclEvent, NcclInterfaces, NcclNics
from isthmus.doctor.readers.stamps import stamp
from isthmus.doctor.text import Document

__all__ = ["read_nccl"]

Fact = NcclEvent | NcclNics | NcclInterfaces | GdrState | EnvSetting | Version

_PROCESS = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):(?P<tid>\d+)\s*\[(?P<device>\d+|\w+)\]")
_PEER = r"(?P<peer>[^\s<]+)"
# (kind, needles of which one must occur, pattern). The first pattern that matches wins.
_EVENTS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "completion",
        ("completion",),
        re.compile(r"[Gg]ot completion (?:from peer " + _PEER + r"(?:<\d+>)? )?with (?:status=(?:\w+\()?|error )(?P<status>\d+)"),
    ),
    (
        "async",
        ("async",),
        re.compile(
            r"(?:NET/IB ?: (?P<device>[\w:]+) )?(?:Got async event|async fatal event)(?: on \w+ \(\w+\))?\s*: (?P<why>.+)$"
        ),
    ),
    ("modify-qp", ("ibv_modify_qp",), re.compile(r"ibv_modify_qp failed(?: with error)?:? ?(?P<why>.*)$")),
    (
        "verbs-memory",
        ("ibv_",),
        re.compile(r"(?P<call>ibv_(?:reg_\w+|create_\w+|alloc_\w+)) failed(?: with error)?:? ?(?P<why>.*)$"),
    ),
    ("no-interface", ("interface", "family"), re.compile(r"[Nn]o (?:socket )?interface found|with family \d+ is neither")),
    (
        "peer-closed",
        ("closed by remote", "remote process", "Call to recv"),
        re.compile(
            r"Connection closed by remote peer ?(?P<peer>[^\s<]*)|Call to recv from (?P<peer2>[^\s<]+)(?:<\d+>)? failed|"
            r"remote process exited or there was a network error"
        ),
    ),
    (
        "connect",
        ("onnect",),
        re.compile(
            r"[Cc]onnect(?:ing)?\b(?: to (?:address )?"
            + _PEER
            + r"(?:<\d+>)?)?[ :,]+(?:failed|returned|timed out|timeout|error)?[^A-Z]{0,40}"
            r"(?P<why>Connection (?:refused|timed out|reset by peer)|No route to host|Network is unreachable|"
            r"Software caused connection abort|"
            r"Host is (?:unreachable|down)|Cannot assign requested address|Operation timed out)"
        ),
    ),
    ("nvls", ("NVLink SHARP",), re.compile(r"Failed to (?:bind|create|map|allocate) NVLink SHARP[^:]*(?:: (?P<why>.*))?$")),
    ("nvls", ("nvls.cc",), re.compile(r"nvls\.cc.*(?P<why>(?:Cuda failure|CUDA error|Cuda failure:).*)$")),
    ("imex", ("Cuda failure 800", "CUDA error 800"), re.compile(r"(?P<why>(?:Cuda failure|CUDA error) 800.*)$")),
    ("cuda", ("Cuda failure", "CUDA error"), re.compile(r"(?:Cuda failure|CUDA error):? ?(?P<code>\d*) ?'?(?P<why>[^']*)")),
    (
        "shm",
        ("/dev/shm", "posix_fallocate", "shared memory", "Bus error"),
        re.compile(
            r"(?P<why>failed to extend /dev/shm.*|posix_fallocate failed.*|[Nn]o space left.*shm.*|shm.*No space left.*|"
            r"Bus error.*shared memory.*|"
            r"unable to allocate shared memory.*|Error while (?:creating|attaching to) shared memory segment.*)$"
        ),
    ),
    (
        "duplicate-gpu",
        ("Duplicate GPU", "using the same GPU"),
        re.compile(
            r"Duplicate GPU detected ?: ?rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>\w+)|"
            r"[Mm]ultiple [Rr]anks? (?:are|is) using the same GPU(?P<why>.*)"
        ),
    ),
    ("version-mismatch", ("ismatched NCCL version",), re.compile(r"Mismatched NCCL version detected ?:? ?(?P<why>.*)$")),
    (
        "p2p-nvlink",
        ("between NVLINK",),
        re.compile(r"P2P is disabled between NVLINK connected GPUs (?P<first>\d+) and (?P<second>\d+)"),
    ),
    (
        "p2p-pcie",
        ("P2P is disabled",),
        re.compile(r"P2P is disabled between (?:connected )?GPUs (?P<first>\d+) and (?P<second>\d+)"),
    ),
    (
        "mismatched-collective",
        ("ismatched collective",),
        re.compile(r"Mismatched collective detected.*?(?:rank (?P<rank>\d+))?\.?(?: |$)"),
    ),
    ("nic-count", ("Net device counts",), re.compile(r"mixed local Net device counts(?P<why>.*)$")),
    (
        "incompatible-nics",
        ("ncompatible",),
        re.compile(r"(?P<why>[Ii]ncompatible (?:IB |net )?devices?.*|[Tt]rying to connect incompatible.*)$"),
    ),
    ("no-ib", ("No device found",), re.compile(r"NET/(?P<what>IB\w*) ?: No device found")),
    (
        "no-plugin",
        ("plugin",),
        re.compile(r"No (?:plugin found|NET/\w+ plugin)|[Cc]ould not find: libnccl-net|Failed to open libnccl-net"),
    ),
    ("network", ("etwork",), re.compile(r"Using (?:internal )?[Nn]etwork (?P<network>[A-Za-z]\S*)")),
    ("assigned", ("NET plugin",), re.compile(r"Assigned NET plugin (?P<network>\S+) to comm")),
    (
        "plugin-loaded",
        ("plugin", "Plugin"),
        re.compile(r"(?:Loaded net plugin|Using|P2P plugin) ?(?P<network>[A-Z]\w*[\w ]*?)(?: v\d+)?(?: \(v\d+\))?\s*$"),
    ),
    (
        "topology-file",
        ("XML", "TOPO_FILE", "topolog"),
        re.compile(
            r"(?:[Cc]ould not open XML file|XML file) (?P<path>\S+)(?: :.*)?(?: not found|.*No such file)|"
            r"Could not open XML file (?P<path2>\S+)"
        ),
    ),
    ("comm", (" nranks ", " nRanks "), re.compile(r"\b(?:nranks|nRanks) (?P<ranks>\d+)(?: .*?nNodes (?P<nodes>\d+))?")),
    (
        "mnnvl-gpu",
        ("MNNVL busId",),
        re.compile(r"MNNVL busId (?P<bus>\w+) fabric UUID (?P<uuid>\S+) cliqueId (?P<clique>\w+) state (?P<state>\d+)"),
    ),
    ("mnnvl", ("MNNVL ",), re.compile(r"MNNVL (?P<on>[01])\b(?: cliqueId (?P<clique>\w+) cliqueSize (?P<size>\d+))?")),
    (
        "channels",
        ("coll channels",),
        re.compile(r"(?P<coll>\d+) coll channels,(?: (?P<collnet>\d+) collnet channels,)? (?P<nvls>\d+) nvls channels"),
    ),
    ("nvls-available", ("NVLS multicast support",), re.compile(r"NVLS multicast support is (?P<not>not )?available")),
    (
        "channel",
        (" via NET",),
        re.compile(r"via NET/(?P<network>[^/\s][^/]*?)(?:/(?P<nic>\d+))?(?:\(\d+\))?(?P<gdr>/GDRDMA)?(?:\(\w+\))?(?:/\w+)*\s*$"),
    ),
    ("qp", ("mtu",), re.compile(r"(?:NET/IB|qpn).*?\bmtu (?P<mtu>[1-5])\b(?:.*?\bGID (?P<gid>\d+))?")),
    (
        "network",
        ("NET/",),
        re.compile(

                r"NET/(?P<network>OFI|FastSocket|FasTrak|gIB|UCX|GPUDirectTCPX|AWS Libfabric)\b(?!.*(?:[Ff]ail"
                r"|[Uu]nable|[Nn]o eligible|not found))"

        ),
    ),
    ("topology", ("=== System",), re.compile(r"=== System : max(?:Width|Bw) (?P<most>[\d.]+)")),
    ("nccl-error", ("NCCL error in",), re.compile(r"NCCL error in: ?(?P<why>.*)$")),
)
_ANY = re.compile("|".join(sorted({re.escape(needle) for _, needles, _ in _EVENTS for needle in needles})))
_VENDOR = re.compile(r"vendor[_ ]err[ =](?P<vendor>\d+)")
_GIDS = re.compile(r"localGid (?P<local>\S+) remoteGids?\s*(?P<remote>\S+)")
_HCA = re.compile(r"\bhca (?P<hca>[\w:]+)")
_NICS = re.compile(r"\[(?P<index>\d+)\](?:\{)?(?P<name>[\w.-]+):(?P<port>\d+)(?::\w+)*/(?P<layer>IB|RoCE|\w+)")
_INTERFACE = re.compile(r"(?:\[\d+\])?(?P<name>[A-Za-z][\w.@-]*):(?P<address>[0-9a-fA-F.:%\w]+)<\d+>")
_GDR = re.compile(
    r"GPU Direct RDMA (?:\((?P<how>[\w -]+)\) )?(?P<state>[Ee]nabled|[Dd]isabled) for "
    r"(?:GPU (?P<gpu>\w+) / )?HCA (?P<nic>\d+)(?: '(?P<name>[\w.-]+)'?)?"
    r"(?:.*?\(distance (?P<distance>\d+) (?:<=|>) (?P<limit>\d+)\))?"
)
_SET = re.compile(r"(?P<name>NCCL_[A-Z0-9_]+) set (?:by environment )?to (?P<value>.*?)\.?\s*$")
_VERSION = re.compile(r"NCCL version (?P<version>\d+\.\d+(?:\.\d+)?)")


def read_nccl(document: Document) -> Iterator[Fact]:
    """Facts of one log in the order of its lines."""
    told: set[tuple[str, str, str]] = set()
    channels: set[tuple[str, str]] = set()
    for index, line in enumerate(document.lines):
        if " via " in line:  # a rank prints one such line a channel and peer: each wording counts once
            key = (line.partition("[")[0], line.partition(" via ")[2])
            if key in channels:
                continue
            channels.add(key)
        if _ANY.search(line):
            yield from _new(_events(document, index, line), told)
        if "NCCL" in line or "NET" in line or "ootstrap" in line or "HCA" in line:
            for read in _OTHERS:
                yield from read(document, index, line)


_REPEATED = frozenset(["channel", "comm", "network", "assigned", "nvls-available", "p2p-pcie", "no-ib", "qp"])


def _new(events: Iterator[NcclEvent], told: set[tuple[str, str, str]]) -> Iterator[NcclEvent]:
    """What ranks repeat for every channel is kept once a process and wording."""
    for event in events:
        key = (event.kind, event.process, " ".join(value for name, value in event.values.items() if name not in {"nic", "ranks"}))
        if event.kind not in _REPEATED or key not in told:
            told.add(key)
            yield event


def _process(document: Document, index: int, line: str) -> tuple[str, str]:
    """(host, process) that wrote the line."""
    found = _PROCESS.search(line)
    host = document.host or (found["host"].lstrip("-") if found else "")
    return host, f"{found['host']}:{found['pid']}" if found else document.labels.get(index, "")


def _events(document: Document, index: int, line: str) -> Iterator[NcclEvent]:
    for kind, needles, pattern in _EVENTS:
        if not any(needle in line for needle in needles):
            continue
        match = pattern.search(line)
        if match is None:
            continue
        values = {name.rstrip("23"): value for name, value in match.groupdict().items() if value is not None}
        for extra in (_VENDOR, _GIDS, _HCA) if kind == "completion" else ():
            if found := extra.search(line):
                values |= found.groupdict()
        host, process = _process(document, index, line)
        yield NcclEvent(
            at=document.place(index, host),
            kind=kind,
            process=process,
            text=line.strip()[:400],
            values=values,
            when=stamp(line)[1],
        )
        return


def _nics(document: Document, index: int, line: str) -> Iterator[NcclNics]:
    if "NET/IB" in line and "Using" in line and (nics := _NICS.findall(line)):
        host, process = _process(document, index, line)
        yield NcclNics(
            at=document.place(index, host), process=process, nics=tuple((name, port, layer) for _, name, port, layer in nics)
        )


def _interfaces(document: Document, index: int, line: str) -> Iterator[NcclInterfaces]:
    use = next((use for use, words in _USES.items() if any(word in line for word in words)), "")
    if use and (found := _INTERFACE.findall(line)):
        host, process = _process(document, index, line)
        yield NcclInterfaces(at=document.place(index, host), process=process, use=use, interfaces=tuple(found))


_USES = {
    "bootstrap": ("Bootstrap : Using", "Bootstrap: Using", "NET : Using interface"),
    "data": ("NET/Socket : Using", "NET/Socket: Using"),
}


def _gdr(document: Document, index: int, line: str) -> Iterator[GdrState]:
    if "GPU Direct RDMA" in line and (found := _GDR.search(line)):
        host, process = _process(document, index, line)
        yield GdrState(
            at=document.place(index, host),
            process=process,
            enabled=found["state"].lower() == "enabled",
            nic=found["name"] or found["nic"],
            gpu=found["gpu"] or "",
            distance=int(found["distance"]) if found["distance"] else None,
        )


def _settings(document: Document, index: int, line: str) -> Iterator[EnvSetting]:
    if " set " in line and (found := _SET.search(line)):
        host, process = _process(document, index, line)
        yield EnvSetting(
            at=document.place(index, host), name=found["name"], value=found["value"].strip("'\""), scope=process or "log"
        )


def _versions(document: Document, index: int, line: str) -> Iterator[Version]:
    if "NCCL version" in line and "ismatched" not in line and (found := _VERSION.search(line)):
        host, process = _process(document, index, line)
        yield Version(at=document.place(index, host), software="nccl", version=found["version"], rank=process)


_OTHERS: tuple[Callable[[Document, int, str], Iterator[Fact]], ...] = (_nics, _interfaces, _gdr, _settings, _versions)
