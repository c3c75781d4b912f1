"""A sites.yaml to fill in, made from a fabric: every region and node is there, and every option with its meaning."""

from pathlib import Path

from isthmus.deploy.sites import FILL_IN
from isthmus.fabric import Fabric, Region, read_fabric

__all__ = ["sites_template", "template_of"]


def sites_template(path: Path) -> str:
    """The template for the fabric at `path`. Raises InputError where it cannot be read."""
    return template_of(read_fabric(path), path.name)


def template_of(fabric: Fabric, fabric_path: str) -> str:
    """The template; what must be filled in says so, and `isthmus deploy` refuses it until it is."""
    several = len(fabric.regions) > 1
    head = [
        f"# Where the regions of {fabric.name!r} really stand. Fill in what says {FILL_IN}; lines with # are options.",
        "version: 1",
        f"fabric: {fabric_path}  # from this file's folder",
    ]
    head.append("# prometheus: HOST:9090              # for --to observability: one that every node may send to")
    if several:
        names = " ".join(region.name for region in fabric.regions)
        head += [
            f"certificates: keys                   # from `isthmus keys {names} -o keys/`",
            "# insecure: true                     # instead: rails in the clear, on a network that nobody else is on",
            "",
            "# The store through which regions regroup when one is lost; leave it out and a lost region ends the run.",
            "# etcd with members in three domains survives the loss of one: coordinator: {etcd: [a:2379, b:2379, c:2379]}",
            "coordinator:",
            f"  address: {FILL_IN}:29700          # host:port that every region reaches",
            "  folder: /srv/isthmus             # on that machine: its journal and certificate",
            "  python: /usr/bin/python3         # with isthmus[runtime]",
        ]
    return "\n".join([*head, "", "regions:", *(line for region in fabric.regions for line in _region(region))]) + "\n"


def _region(region: Region) -> list[str]:
    gpus = min(group.gpus for group in region.groups)
    lines = [
        f"  {region.name}:",
        "    folder: /srv/isthmus             # this region's part of the bundle goes here, the same path on all its nodes",
        "    python: /usr/bin/python3         # with isthmus[runtime], on all nodes",
        "    # keys: /etc/isthmus/keys        # its certificate on the nodes; folder/keys if left out",
        "    # checkpoints: /scratch/run1     # shared by the region's nodes; folder/checkpoints if left out",
        f"    # ranks_per_node: {gpus}              # processes a node; its GPUs if left out",
        "    # interface: eth0                # the interface of the addresses below, where a node has several",
        "    # hcas: [mlx5_0, mlx5_1]         # RDMA devices for training; all active ones if left out",
        "    # topology_file: /opt/topo.xml   # NCCL's topology file on the nodes, where a virtual machine hides its PCIe tree",
        "    # rail_port: 29600               # rank i of a node listens on it + i for other regions: open it in firewalls",
        "    # rendezvous_port: 29400         # where the region's nodes meet, on the first of them",
        "    # export_port: 29800             # Prometheus on loopback: the region's rank r serves on it + r",
        "    # restarts: 3                    # how often a failed region starts again",
        "    slurm:                           # for --to slurm",
        f"      partition: {FILL_IN}",
        "      # account: project",
        "      # qos: normal",
        "      # time: '2-00:00:00'           # the cluster's default if left out",
        f"      # gres: gpu:{gpus}                  # none where Slurm knows no GPUs",
        "      # switches: 1                  # nodes under so few leaf switches",
        "      # extra: [--reservation=night] # more sbatch options",
        "    # kubernetes: {image: registry.example/train:1}  # for --to volcano, jobset, trainjob, kueue",
        "    nodes:                           # in any order; the engine's name, the address at which other regions reach it",
    ]
    width = len(str(region.nodes))
    return lines + [f"      - {{name: {region.name}-{n:0{width}d}, address: {FILL_IN}}}" for n in range(1, region.nodes + 1)]
