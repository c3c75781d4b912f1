"""sites.yaml: what only the user knows about each region of a fabric. Names, addresses, folders, the engine's own options.

`SitesDocument` is the file as written; `read_sites` resolves it against the fabric it names into `Sites`, in which nodes stand in
the order that torchrun numbers them.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from isthmus.documents import Document, Lines, load_document
from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, Region, read_fabric
from isthmus.runtime.environment import Members, RegionMembers, split_address

__all__ = [
    "FILL_IN", "CoordinatorEntry", "KubernetesEntry", "NodeEntry", "Site", "SiteEntry", "Sites", "SitesDocument", "SlurmEntry",
    "read_sites",
]  # fmt: skip

FILL_IN = "FILL-IN"
"""What a template holds in place of what only the user knows."""


def _filled(text: str) -> str:
    if FILL_IN in text:
        raise ValueError(f"{text!r} is still to be filled in")
    return text


def _host_port(text: str) -> str:
    split_address(_filled(text))
    return text


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
Host = Annotated[str, AfterValidator(_filled), Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$", max_length=253)]
HostPort = Annotated[str, AfterValidator(_host_port), Field(pattern=r"^[A-Za-z0-9.:\[\]-]+$")]
# Stands in shell scripts and #SBATCH lines, which read quotes each in their own way; no path of a cluster needs more.
PathText = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@=-]*$", max_length=1000)]
Port = Annotated[int, Field(ge=1, le=65535)]
Word = Annotated[str, AfterValidator(_filled), Field(pattern=r"^[A-Za-z0-9_.:,@+-]+$", max_length=200)]
SlurmTime = Annotated[str, Field(pattern=r"^(\d+-)?\d+(:\d{1,2}){0,2}$")]


Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Subdomain = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Resource = Annotated[str, Field(pattern=r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$", max_length=200)]
Quantity = Annotated[str, Field(pattern=r"^[1-9]\d*(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$", max_length=20)]
Image = Annotated[str, AfterValidator(_filled), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]*$", max_length=500)]


class NodeEntry(Document):
    """One node."""

    name: Name = Field(description="As the engine knows it, such as gpu-01.")
    address: Host = Field(description="Where other regions reach it: an IP address or a host name, such as 10.1.0.11.")
    switch: Name | None = Field(default=None, description="The leaf switch or switch group it hangs on, for topology files.")


class SlurmEntry(Document):
    """Slurm's options of one region; what is left out is left to the cluster's defaults."""

    partition: Word | None = Field(default=None, description="As sbatch --partition.")
    account: Word | None = Field(default=None, description="As sbatch --account.")
    qos: Word | None = Field(default=None, description="As sbatch --qos.")
    time: SlurmTime | None = Field(default=None, description="Limit, in quotes, such as '2-00:00:00'.")
    gres: Word | None = Field(default=None, description="GPUs of a node: gpu:N if left out, none where Slurm knows no GPUs.")
    exclusive: bool = Field(default=True, description="Whole nodes, as sbatch --exclusive.")
    switches: Annotated[int, Field(ge=1, le=1000)] | None = Field(default=None, description="As sbatch --switches.")
    switches_wait: SlurmTime = Field(default="12:00:00", description="How long to wait for so few switches.")
    warn: Annotated[int, Field(ge=10, le=65535)] = Field(
        default=300, description="Seconds before the limit at which the job is put back into the queue."
    )
    extra: list[Annotated[str, Field(pattern=r"^--[a-z][^\n]*$", max_length=300)]] = Field(
        default_factory=list[str], description="More sbatch options, one each, such as --reservation=maintenance."
    )


class KubernetesEntry(Document):
    """What Kubernetes needs to know of one region, for volcano, jobset, trainjob and kueue."""

    image: Image = Field(description="With Python, isthmus[runtime], bash and what your script needs.")
    namespace: Label = Field(default="default", description="Where the objects go.")
    context: Word | None = Field(default=None, description="kubectl's context of this region's cluster, for README.md.")
    queue: Subdomain | None = Field(default=None, description="Volcano's queue, or a LocalQueue of Kueue that exists.")
    gpu_resource: Resource | None = Field(default=None, description="As the device plug-in calls GPUs; the vendor's if left out.")
    rdma_resource: Resource | None = Field(
        default=None, description="As the device plug-in calls adapters, such as rdma/hca; without it pods are privileged."
    )
    cpus: Annotated[int, Field(ge=1, le=10_000)] | None = Field(default=None, description="Processors of a pod.")
    memory: Quantity | None = Field(default=None, description="Of a pod, such as 1500Gi.")
    claim: Subdomain | None = Field(default=None, description="A ReadWriteMany claim for checkpoints that exists.")
    storage: Quantity = Field(default="1Ti", description="Size of the claim that is made otherwise.")
    storage_class: Subdomain | None = Field(default=None, description="Its class; the cluster's default if left out.")
    priority_class: Subdomain | None = Field(default=None, description="Of the pods.")
    pull_secret: Subdomain | None = Field(default=None, description="Secret with the image registry's password.")


class CoordinatorEntry(Document):
    """The store through which regions regroup: our own at `address`, or an etcd cluster. Give one."""

    address: HostPort | None = Field(default=None, description="host:port that every region reaches, such as 10.1.0.2:29700.")
    folder: PathText | None = Field(default=None, description="On that machine: for its journal and certificates.")
    python: PathText = Field(default="/usr/bin/python3", description="On that machine: Python with isthmus[runtime].")
    etcd: Annotated[list[HostPort], Field(min_length=1)] | None = Field(
        default=None, description="host:port of each member, such as [10.1.0.2:2379, 10.2.0.2:2379, 10.3.0.2:2379]."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "CoordinatorEntry":
        if (self.address is None) == (self.etcd is None):
            raise ValueError("give either address, with folder, or etcd")
        if (self.address is None) != (self.folder is None):
            raise ValueError("address and folder belong together: the coordinator keeps its journal there")
        return self


class SiteEntry(Document):
    """One region: its nodes, and where things are on them."""

    folder: PathText = Field(description="Where this region's part of the bundle is put, the same path on all its nodes.")
    python: PathText = Field(default="/usr/bin/python3", description="Python with isthmus[runtime], on all nodes.")
    keys: PathText | None = Field(default=None, description="Folder of this region's certificate on its nodes; FOLDER/keys.")
    checkpoints: PathText | None = Field(default=None, description="Shared by the region's nodes; FOLDER/checkpoints.")
    nodes: Annotated[list[NodeEntry], Field(min_length=1)] = Field(
        description="In any order, as many as the fabric has, such as [{name: gpu-01, address: 10.1.0.11}]."
    )
    ranks_per_node: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Processes a node; its GPUs in the fabric if left out."
    )
    rail_port: Port = Field(default=29600, description="First port for other regions: rank i of a node listens on it + i.")
    rendezvous_port: Port = Field(default=29400, description="Port on the first node where the region's nodes meet.")
    export_port: Port | None = Field(default=None, description="Prometheus on loopback: the region's rank r serves on it + r.")
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")] | None = Field(
        default=None, description="Network interface of the addresses above, such as eth0."
    )
    hcas: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(:\d+)?$")]], Field(min_length=1)] | None = Field(
        default=None, description="RDMA devices for training, such as [mlx5_0, mlx5_3]; all active ones if left out."
    )
    topology_file: PathText | None = Field(
        default=None, description="On the nodes: NCCL's topology of the node, where a virtual machine hides its own."
    )
    restarts: Annotated[int, Field(ge=0, le=1000)] = Field(default=3, description="How often a failed region starts again.")
    slurm: SlurmEntry | None = Field(default=None, description="Such as {partition: gpu, time: 2-00:00:00}.")
    kubernetes: KubernetesEntry | None = Field(default=None, description="Such as {image: registry.example/train:1}.")


class SitesDocument(Document):
    """Where a fabric's regions really stand."""

    version: Literal[1] = 1
    fabric: Annotated[str, Field(min_length=1)] = Field(description="Path of fabric.yaml, from this file's folder.")
    certificates: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Folder of `isthmus keys` on this machine, from this file's folder."
    )
    insecure: bool = Field(default=False, description="Rails in the clear; only on a network that nobody else is on.")
    coordinator: CoordinatorEntry | None = Field(default=None, description="Without one a lost region ends the run.")
    prometheus: HostPort | None = Field(
        default=None, description="host:port of a Prometheus that every node may send to, such as 10.1.0.3:9090."
    )
    regions: Annotated[dict[Name, SiteEntry], Field(min_length=1)] = Field(description="Every region of the fabric, by name.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One region, resolved; `nodes` in torchrun's order."""

    name: str
    region: Region
    nodes: tuple[NodeEntry, ...]
    ranks_per_node: int
    folder: PurePosixPath
    keys: PurePosixPath
    checkpoints: PurePosixPath
    entry: SiteEntry

    @property
    def ranks(self) -> int:
        """Ranks of the region."""
        return len(self.nodes) * self.ranks_per_node

    @property
    def rendezvous(self) -> str:
        """host:port where the region's nodes meet, on its first node."""
        return joined(self.nodes[0].address, self.entry.rendezvous_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """All regions, in the fabric's order.

    Attributes:
        path: Of sites.yaml.
        fabric_path: Of the fabric it names.
        certificates: Folder on this machine, or None.
        document: The file as written.
        lines: Where things stand in it, for errors.
    """

    path: Path
    fabric_path: Path
    fabric: Fabric
    certificates: Path | None
    sites: tuple[Site, ...]
    document: SitesDocument
    lines: Lines

    @property
    def coordinator(self) -> str | None:
        """As ISTHMUS_COORDINATOR takes it."""
        entry = self.document.coordinator
        if entry is None:
            return None
        if entry.address is not None:
            return f"tcp://{entry.address}"
        return f"etcd+http{'' if self.document.insecure else 's'}://{','.join(entry.etcd or [])}"

    @property
    def members(self) -> Members:
        """members.json: rank r of a region is local rank r mod n of its node r div n."""
        regions = [
            RegionMembers(
                name=site.name,
                rails=[joined(node.address, site.entry.rail_port + i) for node in site.nodes for i in range(site.ranks_per_node)],
            )
            for site in self.sites
        ]
        first = self.sites[0]
        return Members(regions=regions, flat_master=joined(first.nodes[0].address, first.entry.rendezvous_port + 1))


def joined(host: str, port: int) -> str:
    """host:port, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_sites(path: Path, fabric_path: Path | None = None, certificates: str | None = None) -> Sites:
    """Read sites.yaml and the fabric it names, and resolve one against the other.

    Args:
        path: The file.
        fabric_path: In place of the fabric it names, for a copy of it that stands elsewhere; with `certificates` likewise.
        certificates: In place of the folder it names.

    Raises:
        InputError: Either cannot be read; a region is unknown, missing, or has other numbers of nodes than the fabric; two nodes
            have one name or address; two ports of a node clash.
    """
    document, lines = load_document(path, SitesDocument)
    place = fabric_path or path.parent / document.fabric
    fabric = read_fabric(place)
    names = [region.name for region in fabric.regions]
    for name in document.regions:
        if name not in names:
            raise lines.error(("regions", name), f"{name!r} is no region of {place}", nearest(name, names))
    missing = [name for name in names if name not in document.regions]
    if missing:
        hint = f"{place} has it; isthmus deploy --sites-template {place} shows what to write"
        raise lines.error(("regions",), f"the region {missing[0]!r} is missing", hint)
    sites = tuple(_site(region, document.regions[region.name], lines) for region in fabric.regions)
    _refuse_twins(sites, lines)
    for site in sites:
        _refuse_clashes(site, document.coordinator, lines)
    given = document.certificates if fabric_path is None else certificates
    return Sites(
        path=path,
        fabric_path=place,
        fabric=fabric,
        certificates=path.parent / given if given else None,
        sites=sites,
        document=document,
        lines=lines,
    )


def _site(region: Region, entry: SiteEntry, lines: Lines) -> Site:
    where = ("regions", region.name)
    if len(entry.nodes) != region.nodes:
        raise lines.error(
            (*where, "nodes"),
            f"{len(entry.nodes)} nodes, but the fabric gives {region.name!r} {region.nodes}",
            "list the nodes that run: members are fixed for a run, so a spare node cannot take another's place in it",
        )
    gpus = sorted({group.gpus for group in region.groups})
    if entry.ranks_per_node is None and len(gpus) > 1:
        hint = f"give ranks_per_node: torchrun starts the same number on every node, at most {gpus[0]} here"
        raise lines.error(where, f"nodes of {region.name!r} have {' or '.join(map(str, gpus))} GPUs", hint)
    ranks = entry.ranks_per_node or gpus[0]
    if ranks > gpus[0]:
        raise lines.error(
            (*where, "ranks_per_node"),
            f"is {ranks}, but a node of {region.name!r} has {gpus[0]} GPUs",
            "one rank a GPU, or fewer",
        )
    folder = PurePosixPath(entry.folder)
    return Site(
        name=region.name,
        region=region,
        # As text: torch's dynamic_rendezvous.py sorts nodes by (address, pid, local id), see `isthmus run`.
        nodes=tuple(sorted(entry.nodes, key=lambda node: node.address)),
        ranks_per_node=ranks,
        folder=folder,
        keys=PurePosixPath(entry.keys) if entry.keys else folder / "keys",
        checkpoints=PurePosixPath(entry.checkpoints) if entry.checkpoints else folder / "checkpoints",
        entry=entry,
    )


def _refuse_twins(sites: tuple[Site, ...], lines: Lines) -> None:
    addresses: dict[str, str] = {}
    for site in sites:
        names: set[str] = set()
        for number, node in enumerate(site.entry.nodes):
            where = ("regions", site.name, "nodes", number)
            if node.name in names:
                raise lines.error((*where, "name"), f"{site.name!r} has two nodes {node.name!r}", "names must differ")
            if node.address in addresses:
                first = addresses[node.address]
                raise lines.error((*where, "address"), f"{node.address} is also the address of {first}", "addresses must differ")
            names.add(node.name)
            addresses[node.address] = f"{node.name} in {site.name}"


def _refuse_clashes(site: Site, coordinator: CoordinatorEntry | None, lines: Lines) -> None:
    where, entry, ranks = ("regions", site.name), site.entry, site.ranks_per_node
    spans = [("rail_port", entry.rail_port, ranks), ("rendezvous_port", entry.rendezvous_port, 2)]
    if entry.export_port is not None:
        spans.append(("export_port", entry.export_port, site.ranks))
    if coordinator is not None and coordinator.address is not None:
        host, port = split_address(coordinator.address)
        if host in {node.address for node in site.nodes}:
            spans.append(("coordinator", port, 1))
    for key, first, count in spans:
        if first + count - 1 > 65535:
            raise lines.error((*where, key), f"{key} {first} and {count - 1} more pass port 65535")
    for number, (key, first, count) in enumerate(spans):
        for other, begin, length in spans[:number]:
            if first < begin + length and begin < first + count:
                raise InputError(
                    lines.where((*where, key)),
                    f"{key} ({first} to {first + count - 1}) clashes with {other} ({begin} to {begin + length - 1})",
                    f"{ranks} ports from rail_port, {site.ranks} from export_port, two from rendezvous_port",
                )
