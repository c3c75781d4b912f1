"""The fabric: regions of identical nodes, the network in each, and the WAN that joins them.

`read_fabric` turns a file into the resolved `Fabric` that every other room uses; `levels` are the tiers a
collective sees, `check_fabric` says what is wrong. The catalogue and the shapes stand beside.
"""

from isthmus.fabric.checks import check_fabric, check_text
from isthmus.fabric.digest import fabric_digests
from isthmus.fabric.edit import edited, fabric_paths, is_fabric_path
from isthmus.fabric.entries import (
    Entry,
    Figure,
    Source,
    entries,
    entry,
    gpu,
    kinds,
    nic,
    number,
    pcie_rate_bytes_per_s,
    sources,
)
from isthmus.fabric.finding import Finding
from isthmus.fabric.levels import levels, region_layout, wan_routes
from isthmus.fabric.model import Fabric, Gpu, InNode, Level, Network, Nic, NodeGroup, Prices, Region, WanLink
from isthmus.fabric.places import fibre_rtt_s, great_circle_m, rtt_floor_s
from isthmus.fabric.read import parse_fabric, read_fabric

__all__ = [
    "Entry",
    "Fabric",
    "Figure",
    "Finding",
    "Gpu",
    "InNode",
    "Level",
    "Network",
    "Nic",
    "NodeGroup",
    "Prices",
    "Region",
    "Source",
    "WanLink",
    "check_fabric",
    "check_text",
    "edited",
    "entries",
    "entry",
    "fabric_digests",
    "fabric_paths",
    "fibre_rtt_s",
    "gpu",
    "great_circle_m",
    "is_fabric_path",
    "kinds",
    "levels",
    "nic",
    "number",
    "parse_fabric",
    "pcie_rate_bytes_per_s",
    "read_fabric",
    "region_layout",
    "rtt_floor_s",
    "sources",
    "wan_routes",
]
