"""What carries a collective: one name for each class of link that behaves alike, whatever its rate."""

from typing import Literal, assert_never, get_args

from isthmus.fabric.model import Network, NodeGroup

__all__ = [
    "CARRIERS",
    "IN_NODE_CARRIERS",
    "NETWORK_CARRIERS",
    "Carrier",
    "InNodeCarrier",
    "NetworkCarrier",
    "in_node_carrier",
    "network_carrier",
]

InNodeCarrier = Literal[
    "nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvlink6", "infinity-fabric", "scale-up", "pcie", "host",
]  # fmt: skip
"""`scale-up` is any vendor's links that have no class of their own; `host` is GPUs that only reach each other through the
host's memory (no peer-to-peer).
"""

NetworkCarrier = Literal["infiniband", "roce", "efa", "ethernet", "slingshot", "tcpx", "tcpxo", "wan-tcp", "wan-rdma"]
"""`ethernet` is TCP sockets; `tcpx` and `tcpxo` are Google's GPUDirect over TCP on A3 High and A3 Mega."""

Carrier = InNodeCarrier | NetworkCarrier

IN_NODE_CARRIERS: tuple[InNodeCarrier, ...] = get_args(InNodeCarrier)
NETWORK_CARRIERS: tuple[NetworkCarrier, ...] = get_args(NetworkCarrier)
CARRIERS: tuple[Carrier, ...] = (*IN_NODE_CARRIERS, *NETWORK_CARRIERS)

_NVLINK: tuple[InNodeCarrier, ...] = ("nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvlink6")


def in_node_carrier(group: NodeGroup) -> InNodeCarrier:
    """The class of the links that join the GPUs of a node of `group` that share its wiring."""
    if group.in_node.kind in ("pcie", "none"):
        return "pcie"
    generation = group.gpu.fabric_generation
    if group.gpu.fabric == "nvlink" and generation is not None and 1 <= generation <= len(_NVLINK):
        return _NVLINK[generation - 1]
    return "infinity-fabric" if group.gpu.fabric == "infinity-fabric" else "scale-up"


def network_carrier(network: Network) -> NetworkCarrier:
    """The class of the network between the nodes of a region."""
    match network.kind:
        case "infiniband" | "roce" | "efa" | "ethernet" | "slingshot":
            return network.kind
        case _:
            assert_never(network.kind)
