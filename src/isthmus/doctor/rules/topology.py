"""Rules about topology: near NICs, chosen NICs, bindings, topology files, hidden topologies, P2P."""

from collections import defaultdict
from collections.abc import Iterator

from isthmus.doctor.case import Case
from isthmus.doctor.facts.gpu import P2pMatrix, TopoMatrix
from isthmus.doctor.facts.host import NumaMap, RankBinding, TreeView
from isthmus.doctor.facts.kernel import PciDevice
from isthmus.doctor.facts.nccl import EnvSetting, NcclEvent, NcclNics, TopologyFile
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.readers.host import cpu_list
from isthmus.doctor.rules.pcie import is_virtual

__all__ = ["RULES"]

_NEAR = frozenset(["PIX", "PXB"])
_FAR = frozenset(["SYS", "NODE", "PHB"])
_NVLINK_ARCHITECTURES = frozenset([70, 80, 90, 100, 103])


def _near(matrix: TopoMatrix, gpu: str) -> list[str]:
    return [nic for nic in matrix.nics if matrix.cells.get((gpu, nic)) in _NEAR]


def without_nic(case: Case) -> Iterator[Finding]:
    """TOPO-01."""
    for matrix in case.of(TopoMatrix):
        lonely = [gpu for gpu in matrix.gpus if not _near(matrix, gpu) and any((gpu, nic) in matrix.cells for nic in matrix.nics)]
        if lonely and len(matrix.nics) >= len(matrix.gpus) and len(lonely) * 2 < len(matrix.gpus):
            what = (
                f"{', '.join(lonely)} {'has' if len(lonely) == 1 else 'have'} no NIC on the same PCIe switch; the "
                f"other {len(matrix.gpus) - len(lonely)} GPUs do."
            )
            yield found("TOPO-01", what, matrix.places[lonely[0]], subject=lonely[0])


def far_nic(case: Case) -> Iterator[Finding]:
    """TOPO-02."""
    for host, matrices in case.hosts(TopoMatrix).items():
        matrix = matrices[0]
        chosen = _chosen(case, host, matrix)
        if not chosen:
            continue
        names, source = chosen
        for gpu in matrix.gpus:
            cells = {nic: matrix.cells.get((gpu, nic), "") for nic in names}
            if cells and set(cells.values()) <= {"SYS"} and _near(matrix, gpu):
                what = (
                    f"{gpu} reaches the chosen NICs ({', '.join(matrix.legend.get(n, n) for n in names[:4])}) only across "
                    f"the socket; "
                )
                what += f"{matrix.legend.get(_near(matrix, gpu)[0], _near(matrix, gpu)[0])} is near."
                yield found("TOPO-02", what, source.at, matrix.places[gpu], subject=gpu)
                break


def _chosen(case: Case, host: str, matrix: TopoMatrix) -> tuple[list[str], NcclNics | EnvSetting] | None:
    """Columns of the NICs that NCCL took, and where that was read."""
    column = {device: nic for nic, device in matrix.legend.items()} | {nic: nic for nic in matrix.nics}
    lists = case.hosts(NcclNics).get(host, case.hosts(NcclNics).get("", []))
    settings = [
        s for s in case.of(EnvSetting) if s.name == "NCCL_IB_HCA" and s.at.host in {host, ""} and not s.value.startswith("^")
    ]
    if lists:
        return [column[name] for name, _, _ in lists[0].nics if name in column], lists[0]
    if settings:
        names = [name.split(":")[0] for name in settings[-1].value.removeprefix("=").split(",")]
        return [column[name] for name in names if name in column], settings[-1]
    return None


def binding(case: Case) -> Iterator[Finding]:
    """TOPO-03."""
    for host, bindings in case.hosts(RankBinding).items():
        matrices = case.hosts(TopoMatrix).get(host, [])
        for bound in bindings:
            near = matrices[0].affinity.get(f"GPU{bound.gpu}", "") if matrices and bound.gpu else ""
            if near and bound.cpus and not cpu_list(near) & bound.cpus:
                what = f"Process {bound.process} may use CPUs {_short(bound.cpus)}; those near GPU {bound.gpu} are {near}."
                yield found(
                    "TOPO-03",
                    what,
                    bound.at,
                    matrices[0].places.get(f"GPU{bound.gpu}", matrices[0].at),
                    subject=f"rank {bound.process}",
                )
    for host, maps in case.hosts(NumaMap).items():
        nodes = maps[0].cpus
        interleaved = len(nodes) > 1 and all(
            len(c) > 3 and max(c) - min(c) + 1 > 1.5 * len(c) and not _blocks(c) for c in nodes.values()
        )
        if interleaved and not case.hosts(RankBinding).get(host):
            first = sorted(nodes[min(nodes)])
            what = (
                f"CPUs are numbered alternately over {len(nodes)} NUMA nodes (node {min(nodes)}: "
                f"{', '.join(map(str, first[:4]))}, ...): a range such as 0-15 spans all."
            )
            yield found("TOPO-03", what, maps[0].at, severity="INFO")


def _blocks(cpus: frozenset[int]) -> bool:
    """Made of runs (0-31,64-95), as hyper-threads are numbered."""
    return sum(cpu + 1 in cpus for cpu in cpus) * 2 > len(cpus)


def _short(cpus: frozenset[int]) -> str:
    return f"{min(cpus)}-{max(cpus)}" if len(cpus) == max(cpus) - min(cpus) + 1 else f"{min(cpus)}..{max(cpus)} ({len(cpus)})"


def topology_file(case: Case) -> Iterator[Finding]:
    """TOPO-05."""
    for host, files in case.hosts(TopologyFile).items():
        devices = case.hosts(PciDevice).get(host, [])
        gpus = {_full(d.address) for d in devices if d.kind == "gpu"}
        nodes = {str(node) for m in case.hosts(NumaMap).get(host, []) for node in m.cpus}
        for file in files:
            absent = sorted(file.gpu_addresses - gpus) if gpus and not file.graph else []
            numa = sorted(file.numa - nodes) if nodes and file.numa else []
            if absent:
                yield found(
                    "TOPO-05",
                    (
                        f"The file names GPU {absent[0]}, which this machine does not have ({len(absent)} of "
                        f"{len(file.gpu_addresses)})."
                    ),
                    file.at,
                    next(d.at for d in devices if d.kind == "gpu"),
                    subject=absent[0],
                )
            elif numa:
                yield found(
                    "TOPO-05",
                    f"The file names NUMA node {numa[0]}, which this machine does not have.",
                    file.at,
                    subject=f"NUMA {numa[0]}",
                )
    for event in case.of(NcclEvent):
        if event.kind == "topology-file":
            path = event.values.get("path") or event.values.get("path2", "")
            yield found("TOPO-05", f"NCCL could not open the topology file {path}.", event.at, subject=path)


def _full(address: str) -> str:
    return address.lower() if address.count(":") == 2 else f"0000:{address.lower()}"


def lost_links(case: Case) -> Iterator[Finding]:
    """TOPO-06."""
    for file in case.of(TopologyFile):
        some = 0 < len(file.gpus_without_nvlink) < file.gpus
        if file.gpus_without_nvlink and file.architectures & _NVLINK_ARCHITECTURES and (some or file.coherent):
            what = f"GPU {file.gpus_without_nvlink[0]} has no NVLink in NCCL's view" + (
                f" ({len(file.gpus_without_nvlink)} of {file.gpus} GPUs)." if some else "."
            )
            yield found("TOPO-06", what, file.at, subject=file.gpus_without_nvlink[0])


def hidden(case: Case) -> Iterator[Finding]:
    """TOPO-07."""
    if any(s.name == "NCCL_TOPO_FILE" for s in case.of(EnvSetting)):
        return
    for host, matrices in case.hosts(TopoMatrix).items():
        matrix = matrices[0]
        cells = {matrix.cells.get((gpu, nic)) for gpu in matrix.gpus for nic in matrix.nics} - {None}
        if len(matrix.gpus) > 1 and len(matrix.nics) > 1 and len(cells) == 1 and cells <= _FAR and is_virtual(case, host):
            yield found(
                "TOPO-07",
                f"Every GPU to NIC path is {cells.pop()} in a virtual machine, and no NCCL_TOPO_FILE is set.",
                matrix.at,
            )
    for host, trees in case.hosts(TreeView).items():
        if trees[0].virtual and len(trees[0].gpus) > 1 and trees[0].nics:
            what = (
                f"{len(trees[0].gpus)} GPUs and {len(trees[0].nics)} NICs hang on one flat bus: the hypervisor hides "
                f"the PCIe tree."
            )
            yield found("TOPO-07", what, trees[0].at, severity="WARN", subject=host)


def no_p2p(case: Case) -> Iterator[Finding]:
    """TOPO-08."""
    words = {
        "CNS": "chipset not supported",
        "GNS": "GPU not supported",
        "TNS": "topology not supported",
        "NS": "not supported",
        "DR": "disabled by the registry",
        "U": "unknown",
    }
    for matrix in case.of(P2pMatrix):
        bad = {pair: cell for pair, cell in matrix.cells.items() if cell not in {"OK", "X"}}
        if bad:
            (first, second), cell = next(iter(bad.items()))
            what = f"{len(bad) // 2 or 1} GPU pairs have no P2P, e.g. {first}-{second}: {cell}, {words.get(cell, cell)}."
            yield found("TOPO-08", what, matrix.places.get(first, matrix.at), subject=f"{first}-{second}")
    for events in case.hosts(NcclEvent).values():
        noted = [e for e in events if e.kind == "p2p-pcie"]
        if noted:
            pairs = list(dict.fromkeys("-".join(sorted((e.values["first"], e.values["second"]))) for e in noted))
            what = (
                f"NCCL finds no P2P between PCIe GPUs {', '.join(pairs[:6])}: normal for cards that have none, else ACS or IOMMU."
            )
            yield found("TOPO-08", what, *(e.at for e in noted), subject=pairs[0], severity="INFO")


def shapes(case: Case) -> dict[str, list[TopoMatrix]]:
    """Host -> matrices; used by rules/across.py."""
    grouped: dict[str, list[TopoMatrix]] = defaultdict(list)
    for matrix in case.of(TopoMatrix):
        grouped[matrix.at.host].append(matrix)
    return dict(grouped)


RULES = {
    "TOPO-01": without_nic,
    "TOPO-02": far_nic,
    "TOPO-03": binding,
    "TOPO-05": topology_file,
    "TOPO-06": lost_links,
    "TOPO-07": hidden,
    "TOPO-08": no_p2p,
}
