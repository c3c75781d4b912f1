"""The fabric: regions of identical nodes, the network in each, and the WAN that joins them.

`read_fabric` turns a file into the resolved `Fabric` that every other room uses; the catalogue of hardware
and cities, and the shapes of nodes and networks, stand beside it.
"""

from isthmus.fabric.entries import (
    Entry,
    Figure,
    Source,
    entries,
    entry,
    gpu,
    kinds,
    nic,
    pcie_rate_bytes_per_s,
    sources,
)
from isthmus.fabric.model import Fabric, Gpu, InNode, Level, Network, Nic, NodeGroup, Region, WanLink
from isthmus.fabric.places import fibre_rtt_s, great_circle_m, rtt_floor_s
from isthmus.fabric.read import parse_fabric, read_fabric

__all__ = [
    "Entry",
    "Fabric",
    "Figure",
    "Gpu",
    "InNode",
    "Level",
    "Network",
    "Nic",
    "NodeGroup",
    "Region",
    "Source",
    "WanLink",
    "entries",
    "entry",
    "fibre_rtt_s",
    "gpu",
    "great_circle_m",
    "kinds",
    "nic",
    "parse_fabric",
    "pcie_rate_bytes_per_s",
    "read_fabric",
    "rtt_floor_s",
    "sources",
]
