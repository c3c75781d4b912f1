"""Rules that compare the nodes of one job: the odd one out. They need no site configuration: most nodes say what is normal."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from isthmus.doctor.case import Case, mode
from isthmus.doctor.facts.gpu import GpuReport
from isthmus.doctor.facts.host import HostSetting, Version
from isthmus.doctor.facts.nccl import EnvSetting, TopologyFile
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.rules.gpu import gpu_counts
from isthmus.doctor.rules.topology import shapes
from isthmus.doctor.text import Place

__all__ = ["RULES"]


def gpu_count(case: Case) -> Iterator[Finding]:
    """GPU-01 between nodes."""
    counts = {host: pair for host, pair in gpu_counts(case).items() if host}
    usual = mode(count for count, _ in counts.values())
    for host, (count, at) in counts.items():
        if usual is not None and count < usual and case.expected.gpus is None:
            yield found(
                "GPU-01",
                f"{host} shows {count} GPUs; {sum(c == usual for c, _ in counts.values())} of {len(counts)} nodes show {usual}.",
                at,
            )


def nic_count(case: Case) -> Iterator[Finding]:
    """IB-10 between nodes."""
    counts = {host: (len({p.device for p in ports}), ports[0].at) for host, ports in case.hosts(IbPort).items() if host}
    usual = mode(count for count, _ in counts.values())
    for host, (count, at) in counts.items():
        if usual is not None and count < usual and case.expected.nics is None:
            yield found("IB-10", f"{host} shows {count} RDMA devices; most nodes show {usual}.", at)


_SOFTWARE = ("driver", "cuda", "kernel", "ofed", "fabricmanager", "image")


def software(case: Case) -> Iterator[Finding]:
    """HOST-11."""
    for name in _SOFTWARE:
        versions: dict[str, Version] = {}
        for version in case.of(Version):
            if version.software == name and version.at.host:
                versions.setdefault(version.at.host, version)
        usual = mode(v.version for v in versions.values())
        odd = [(host, v) for host, v in versions.items() if v.version != usual]
        if usual is None and len({v.version for v in versions.values()}) > 1:
            words = ", ".join(f"{times} x {v}" for v, times in Counter(v.version for v in versions.values()).most_common(4))
            yield found("HOST-11", f"{name}: {words}.", *(v.at for _, v in odd[:4]), subject=name)
        for host, version in odd if usual is not None else ():
            yield found(
                "HOST-11",
                f"{host} has {name} {version.version}; {sum(v.version == usual for v in versions.values())} nodes have {usual}.",
                version.at,
                subject=host,
            )


def topology(case: Case) -> Iterator[Finding]:
    """TOPO-04: matrices as numbers of each kind of cell by GPU, so that another numbering of GPUs or NICs is no difference."""
    seen: dict[str, tuple[tuple[str, ...], Place]] = {}
    for host, matrices in shapes(case).items():
        matrix = matrices[0]
        rows = sorted(" ".join(sorted(matrix.cells.get((gpu, column), "X") for column in matrix.columns)) for gpu in matrix.gpus)
        if host and matrix.complete:
            seen[host] = (tuple(rows), matrix.at)
    for host, files in case.hosts(TopologyFile).items():
        if host and host not in seen and not files[0].graph:
            seen[host] = (files[0].shape, files[0].at)
    usual = mode(shape for shape, _ in seen.values())
    for host, (shape, at) in seen.items():
        if usual is not None and shape != usual:
            yield found(
                "TOPO-04",
                f"{host} has another topology than {sum(s == usual for s, _ in seen.values())} of {len(seen)} nodes.",
                at,
            )


_PER_HOST = re.compile(r"NCCL_(?:\w*_?(?:FILE|IFNAME|HCA)|HOSTID|COMM_ID|TOPO_\w+|GRAPH_\w+|SOCKET_IFNAME|IB_HCA)$")


def environment(case: Case) -> Iterator[Finding]:
    """ENV-11: by host, and by rank where launchers name it."""
    values: dict[str, dict[str, EnvSetting]] = defaultdict(dict)
    owners: set[str] = set()
    for setting in case.of(EnvSetting):
        owner = setting.at.host or setting.scope
        if owner and setting.name.startswith("NCCL_") and not _PER_HOST.match(setting.name):
            owners.add(owner)
            values[setting.name][owner] = setting
    for name, by_owner in values.items():
        if len(owners) < 2:
            continue
        usual = mode([s.value for s in by_owner.values()] + ["(not set)"] * (len(owners) - len(by_owner)))
        odd = [(owner, s) for owner, s in by_owner.items() if s.value != usual]
        if len({s.value for s in by_owner.values()}) > 1 and odd:
            owner, setting = odd[0]
            rest = f", {usual} on most" if usual else f", {_others(by_owner, setting.value)}"
            more = f" and {len(odd) - 1} other{'s' * (len(odd) > 2)}" if usual and len(odd) > 1 else ""
            what = f"{name} is {setting.value or 'empty'} on {owner}{more}{rest}."
            yield found("ENV-11", what, setting.at, *(s.at for o, s in by_owner.items() if o not in dict(odd)), subject=name)


def _others(by_owner: dict[str, EnvSetting], value: str) -> str:
    return next((f"{s.value or 'empty'} on {owner}" for owner, s in by_owner.items() if s.value != value), "not set elsewhere")


def hidden_files(case: Case) -> Iterator[Finding]:
    """ENV-14."""
    files = [s for s in case.of(HostSetting) if s.name.startswith("file ") and s.value.strip()]
    contents = {s.value for s in files}
    for setting in files[:1]:
        names = [
            line.split("=")[0].strip() for line in setting.value.splitlines() if "=" in line and not line.lstrip().startswith("#")
        ]
        if names:
            differ = len(contents) > 1
            what = f"{setting.name.removeprefix('file ')} sets {', '.join(names[:5])}" + (
                " and is not the same on every node." if differ else " for every job on the machine."
            )
            yield found("ENV-14", what, setting.at, subject=names[0], severity="ERROR" if differ else "WARN")


def memory(case: Case) -> Iterator[Finding]:
    """GPU-10: the same model with different memory on different nodes."""
    sizes = {
        (r.at.host, r.number("FB Memory Usage/Total")): r
        for r in case.of(GpuReport)
        if r.number("FB Memory Usage/Total") and r.at.host
    }
    usual = mode(size for _, size in sizes)
    for (host, size), report in sizes.items():
        if usual is not None and size is not None and size < 0.9 * usual:
            yield found(
                "GPU-10",
                f"{host}: a GPU has {size:g} MiB of memory where most have {usual:g}.",
                report.place("FB Memory Usage/Total"),
                severity="ERROR",
            )


RULES = {
    "GPU-01": gpu_count,
    "IB-10": nic_count,
    "HOST-11": software,
    "TOPO-04": topology,
    "ENV-11": environment,
    "ENV-14": hidden_files,
    "GPU-10": memory,
}
