"""Build the tunnel's network: a namespace a node, a router with a bridge a region, and the ports where the WAN hangs.

    node (eth0 10.77.r.10+i) --veth-- [bridge br0 10.77.r.1 | router of region r | wan0] --veth-- [wanp] delay line

Every wan0 has the same MAC address and asks for none, so a frame that leaves one router is valid at any other
and the delay line need not touch it.
"""

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from isthmus.emulate import namespaces
from isthmus.emulate.link import MTU

__all__ = ["Network", "TcpSettings", "build", "node_address", "port_drops"]

_WAN_MAC = "02:00:00:00:00:01"
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 6, 15, 23
_SO_RCVBUFFORCE = 33
_ETH_P_ALL = 0x0003
_PORT_BUFFER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """TCP inside the nodes.

    Attributes:
        congestion: Name for the routes across the WAN; None means bbr where the kernel has it, else its
            default.
        buffer_bytes_max: Largest send and receive buffer of a connection; must exceed the bandwidth-delay
            product.
        slow_start_after_idle: None leaves the kernel's default.
        rto_max_s: Ceiling of the retransmission timer, where the kernel has the setting (6.15); None leaves
            its default.
    """

    congestion: str | None = None
    buffer_bytes_max: int = 64 << 20
    slow_start_after_idle: bool | None = None
    rto_max_s: float | None = 2.0


@dataclass(frozen=True, slots=True)
class Network:
    """What was built: namespaces by node and by router, one port per region, and the congestion control in use."""

    home_fd: int
    node_fds: tuple[tuple[int, ...], ...]
    router_fds: tuple[int, ...]
    ports: tuple[socket.socket, ...]
    congestion: str


def node_address(region: int, node: int) -> str:
    """IPv4 of a node."""
    return f"10.77.{region}.{10 + node}"


def build(nodes_per_region: tuple[int, ...], tcp: TcpSettings) -> Network:
    """Make everything, from a process that owns the network namespace it is in (`namespaces.become_owner`).

    Raises:
        OSError: The kernel refused a step.
        ValueError: `tcp.congestion` is a name this kernel does not have.
    """
    home = namespaces.open_network()
    routers: list[int] = []
    nodes: list[tuple[int, ...]] = []
    for count in nodes_per_region:
        routers.append(namespaces.hold_new_network())
        nodes.append(tuple(namespaces.hold_new_network() for _ in range(count)))
    namespaces.enter(home)
    congestion = ""
    ports: list[socket.socket] = []
    for region, router in enumerate(routers):
        with namespaces.inside(router, home):
            _quiet_ipv6()
            namespaces.write_setting("/proc/sys/net/ipv4/ip_forward", "1")
        for node in nodes[region]:
            with namespaces.inside(node, home):
                _quiet_ipv6()
                _set_tcp(tcp)
        congestion = _wire_region(region, router, nodes[region], home, tcp.congestion)
        with namespaces.inside(router, home):
            ports.append(_port())
    return Network(home, tuple(nodes), tuple(routers), tuple(ports), congestion)


def _quiet_ipv6() -> None:
    """Keep router solicitations and the like off the WAN; the tunnel is IPv4 only."""
    for scope in ("all", "default"):
        path = f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"
        if os.path.exists(path):
            namespaces.write_setting(path, "1")


def _set_tcp(tcp: TcpSettings) -> None:
    ipv4 = "/proc/sys/net/ipv4/"
    for name in ("tcp_rmem", "tcp_wmem"):
        low, default, _ = (namespaces.read_setting(ipv4 + name) or "4096 131072 0").split()
        namespaces.write_setting(ipv4 + name, f"{low} {default} {tcp.buffer_bytes_max}")
    namespaces.write_setting(ipv4 + "tcp_no_metrics_save", "1")  # one run must not teach the next
    if tcp.slow_start_after_idle is not None:
        namespaces.write_setting(ipv4 + "tcp_slow_start_after_idle", str(int(tcp.slow_start_after_idle)))
    if tcp.rto_max_s is not None and os.path.exists(ipv4 + "tcp_rto_max_ms"):
        namespaces.write_setting(ipv4 + "tcp_rto_max_ms", str(round(tcp.rto_max_s * 1e3)))
    gid = os.getgid()
    namespaces.write_setting(ipv4 + "ping_group_range", f"{gid} {gid}")  # ping without capabilities


def _wire_region(region: int, router: int, nodes: tuple[int, ...], home: int, congestion: str | None) -> str:
    """Devices, addresses and routes of one region; returns the congestion control its WAN routes got."""
    hub = _netlink(router, home)
    try:
        _up(hub, "lo")
        hub.link("add", ifname="br0", kind="bridge")
        bridge = _up(hub, "br0")
        hub.addr("add", index=bridge, address=f"10.77.{region}.1", prefixlen=24)
        hub.link("add", ifname="wan0", kind="veth", address=_WAN_MAC, mtu=MTU, peer={"ifname": "wanp", "mtu": MTU})
        for name in ("wanp", "wan0"):
            hub.link("set", index=_index(hub, name), arp=False)
            wan = _up(hub, name)
        hub.route("add", dst="10.77.0.0/16", oif=wan)
        used = ""
        for number, node in enumerate(nodes):
            peer = {"ifname": "eth0", "mtu": MTU, "net_ns_fd": node}
            hub.link("add", ifname=f"p{number}", kind="veth", mtu=MTU, peer=peer)
            hub.link("set", index=_index(hub, f"p{number}"), master=bridge)
            _up(hub, f"p{number}")
            used = _wire_node(region, number, _netlink(node, home), congestion)
        return used
    finally:
        hub.close()


def _wire_node(region: int, number: int, link: Any, congestion: str | None) -> str:
    try:
        _up(link, "lo")
        eth0 = _index(link, "eth0")
        link.addr("add", index=eth0, address=node_address(region, number), prefixlen=24)
        _up(link, "eth0")
        return _default_route(link, f"10.77.{region}.1", congestion)
    finally:
        link.close()


def _default_route(link: Any, gateway: str, congestion: str | None) -> str:
    """The route to the other regions, with its congestion control: not subject to the host's list of allowed ones."""
    from pyroute2.netlink.exceptions import NetlinkError

    wanted = congestion or "bbr"
    try:
        link.route("add", dst="default", gateway=gateway, metrics={"cc_algo": wanted})
        return wanted
    except NetlinkError:
        if congestion:
            have = namespaces.read_setting("/proc/sys/net/ipv4/tcp_available_congestion_control")
            raise ValueError(f"this kernel has no TCP congestion control {congestion!r} (it has: {have})") from None
    link.route("add", dst="default", gateway=gateway)
    return namespaces.read_setting("/proc/sys/net/ipv4/tcp_congestion_control") or "unknown"


def _port() -> socket.socket:
    """A raw socket on wanp that takes and gives super-packets; called inside the router's namespace."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option, force in ((socket.SO_RCVBUF, _SO_RCVBUFFORCE), (socket.SO_SNDBUF, _SO_RCVBUFFORCE - 1)):
        port.setsockopt(socket.SOL_SOCKET, option, _PORT_BUFFER_BYTES)
        # Not root on the host: the kernel's rmem_max and wmem_max hold, and drops are counted.
        with suppress(PermissionError):
            port.setsockopt(socket.SOL_SOCKET, force, _PORT_BUFFER_BYTES)
    port.bind(("wanp", _ETH_P_ALL))
    return port


def port_drops(port: socket.socket) -> int:
    """Frames the kernel dropped because the delay line did not read in time, since the last call."""
    return struct.unpack("=II", port.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]


def _netlink(net_fd: int, home_fd: int) -> Any:
    from pyroute2 import IPRoute

    with namespaces.inside(net_fd, home_fd):
        return IPRoute()


def _index(link: Any, name: str) -> int:
    found = cast("Iterable[int]", link.link_lookup(ifname=name))
    return next(iter(found))


def _up(link: Any, name: str) -> int:
    index = _index(link, name)
    link.link("set", index=index, state="up")
    return index
