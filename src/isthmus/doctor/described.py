"""A described fabric -> what the doctor may expect of its nodes, and an NCCL topology file for one of them."""

from collections.abc import Callable

from isthmus.doctor.case import Expected
from isthmus.doctor.facts.bench import BenchmarkTable
from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, NodeGroup, Region
from isthmus.formats.nccl_topology import Element

__all__ = ["expected_of", "node_topology"]


def expected_of(fabric: Fabric, path: str, busbw: Callable[[BenchmarkTable], float | None] | None) -> Expected:
    """Counts and rates that hold for every node of the fabric; None where its regions differ."""
    groups = [group for region in fabric.regions for group in region.groups]
    gpus, nics = {group.gpus for group in groups}, {group.nics for group in groups}
    rates = {group.nic.rate_bytes_per_s * 8 / 1e9 for group in groups if group.nic}
    longest = max(fabric.wan, key=lambda link: link.rtt_s, default=None)
    return Expected(
        gpus=gpus.pop() if len(gpus) == 1 else None,
        nics=nics.pop() if len(nics) == 1 else None,
        nic_rate_gbit_per_s=rates.pop() if len(rates) == 1 else None,
        wan_rtt_s=longest.rtt_s if longest else None,
        wan_rate_bytes_per_s=longest.rate_bytes_per_s if longest else None,
        busbw_gbyte_per_s=busbw,
        source=path,
    )


def _group(fabric: Fabric, region: str | None) -> tuple[Region, NodeGroup]:
    names = [one.name for one in fabric.regions]
    if region is not None and region not in names:
        raise InputError("--region", f"no region {region!r}", nearest(region, names))
    chosen = fabric.regions[names.index(region)] if region else fabric.regions[0]
    return chosen, chosen.groups[0]


def node_topology(fabric: Fabric, region: str | None) -> Element:
    """A `<system>` as NCCL_TOPO_FILE wants it: two sockets, one PCIe switch for each GPU with its share of the NICs.

    Addresses are made up (bus 0x10 + GPU): replace them by the machine's own, `lspci -D` lists them.
    """
    _, group = _group(fabric, region)
    cpus: list[Element] = []
    sockets = 2 if group.gpus > 1 else 1
    for socket in range(sockets):
        mine = [gpu for gpu in range(group.gpus) if gpu * sockets // group.gpus == socket]
        attributes = {
            "numaid": str(socket),
            "affinity": "0",
            "arch": "x86_64",
            "vendor": "GenuineIntel",
            "familyid": "6",
            "modelid": "143",
        }
        cpus.append(Element("cpu", attributes, tuple(_switch(group, gpu) for gpu in mine)))
    return Element("system", {"version": "1"}, tuple(cpus))


_SPEEDS = {"1": "2.5", "2": "5.0", "3": "8.0", "4": "16.0", "5": "32.0", "6": "64.0"}


def _speed(pcie: str) -> dict[str, str]:
    """`gen5-x16` or `pcie5-x16` -> NCCL's attributes."""
    generation = next((letter for letter in pcie if letter.isdecimal()), "3")
    return {"link_speed": f"{_SPEEDS.get(generation, '8.0')} GT/s PCIe", "link_width": "16"}


def _switch(group: NodeGroup, gpu: int) -> Element:
    bus = 0x10 + 4 * gpu
    speed = _speed(group.gpu.pcie)
    devices = [Element("pci", {"busid": f"0000:{bus + 1:02x}:00.0", "class": "0x030200", **speed})]
    for nic in range(group.nics):
        if nic * group.gpus // max(group.nics, 1) == gpu and group.nic is not None:
            devices.append(
                Element("pci", {"busid": f"0000:{bus + 2:02x}:{nic % 32:02x}.0", "class": "0x020700", **_speed(group.nic.pcie)})
            )
    return Element("pci", {"busid": f"0000:{bus:02x}:00.0", "class": "0x060400", **speed}, tuple(devices))
