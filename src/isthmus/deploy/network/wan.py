"""TCP between regions as sysctl settings, and why a WAN stays lossy: the arithmetic, link by link."""

from dataclasses import dataclass

from isthmus.cost.link import LinkQuestion, answer_link
from isthmus.cost.lossless import ecn_thresholds, pfc_headroom_bytes
from isthmus.cost.transport import bandwidth_delay_product_bytes, payload_fraction, tcp_buffer_bytes
from isthmus.cost.transport_loss import loss_rate_bytes_per_s
from isthmus.deploy.network.roce import Roce
from isthmus.deploy.network.shown import NOT_VALIDATED, noted
from isthmus.deploy.settings import Setting
from isthmus.fabric import Fabric, WanLink, fibre_rtt_s, wan_routes
from isthmus.plan import Plan
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = ["Flows", "flows_of", "sysctl_settings", "sysctl_text", "wan_words"]

_SYSCTL = "kernel Documentation/networking/ip-sysctl"
_BBR = "Cardwell et al., ACM Queue 14(5), 2016"
_KERNEL_RECEIVE_MOST = 6 * 2**20
"""tcp_rmem's third number as Linux comes with it."""
_MTU = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """The TCP streams of one region's longest route: all of them together carry `rate_bytes_per_s`.

    Attributes:
        to: The region at its other end.
        rails: Pairs of ranks, one for each rank of the smaller region.
        streams: Of one rail.
        loss: Of the route's own link, or of the worst on the way.
    """

    to: str
    rate_bytes_per_s: float
    rtt_s: float
    rails: int
    streams: int
    loss: float

    @property
    def count(self) -> int:
        """All streams."""
        return self.rails * self.streams


def flows_of(region: str, fabric: Fabric, plan: Plan) -> Flows | None:
    """The route from `region` whose streams need the most buffer; None for a fabric of one region."""
    found: list[Flows] = []
    for route in wan_routes(fabric):
        if region in route.between:
            other = next(name for name in route.between if name != region)
            rails = max(1, min(fabric.region(region).gpus, fabric.region(other).gpus))
            direct = [link.loss for link in fabric.wan if set(link.between) == set(route.between)]
            found.append(
                Flows(
                    to=other,
                    rate_bytes_per_s=route.rate_bytes_per_s,
                    rtt_s=route.rtt_s,
                    rails=rails,
                    streams=plan.strategy.streams,
                    loss=max(direct or [link.loss for link in fabric.wan]),
                )
            )
    return max(found, key=lambda each: each.rate_bytes_per_s * each.rtt_s / each.count, default=None)


def sysctl_settings(flows: Flows) -> list[Setting]:
    """What Linux needs to keep the route full."""
    product = bandwidth_delay_product_bytes(flows.rate_bytes_per_s, flows.rtt_s)
    each = product / flows.count
    needed = tcp_buffer_bytes(flows.rate_bytes_per_s, flows.rtt_s, flows.count)
    size = max(needed, _KERNEL_RECEIVE_MOST)
    sum_words = (
        f"to {flows.to}: {show_rate(flows.rate_bytes_per_s)} x {show_seconds(flows.rtt_s)} = {show_bytes(product)} in flight "
        "over "
        f"{flows.rails} rails x {flows.streams} streams = {show_bytes(each)} each; half of a buffer is window, so at least "
        f"{show_bytes(2 * each)}; twice that lets a stream take over the share of one that pauses: {show_bytes(needed)}"
    )
    if size > needed:
        sum_words += f"; less than Linux's own {show_bytes(size)}, which stays"
    return [
        Setting("net.core.rmem_max", str(size), f"caps what a program may ask for; {sum_words}", _SYSCTL),
        Setting("net.core.wmem_max", str(size), "as for receiving: what is sent stays until it is acknowledged", _SYSCTL),
        Setting("net.ipv4.tcp_rmem", f"4096 131072 {size}", "least and start as Linux has them, the most as above", _SYSCTL),
        Setting(
            "net.ipv4.tcp_wmem", f"4096 65536 {size}", "the start holds one write of isthmus (64 KiB) in place of 16 KiB", _SYSCTL
        ),
        Setting(
            "net.core.default_qdisc",
            "fq",
            "BBR's packets are paced one by one; takes effect on interfaces brought up later",
            _BBR,
        ),
        Setting("net.ipv4.tcp_congestion_control", "bbr", _why_bbr(flows), _BBR),
        Setting(
            "net.ipv4.tcp_slow_start_after_idle",
            "0",
            "streams rest between syncs; with 1 each burst would start anew from ten packets",
            _SYSCTL,
        ),
        Setting(
            "net.ipv4.tcp_mtu_probing",
            "1",
            "where a tunnel on the way takes less than the interface's MTU and its ICMP is filtered, streams find the size "
            "themselves",
            f"{_SYSCTL}; RFC 4821",
        ),
    ]


def _why_bbr(flows: Flows) -> str:
    mss = _MTU * payload_fraction(_MTU)
    cubic = loss_rate_bytes_per_s("cubic", flows.rate_bytes_per_s / flows.count, flows.loss, flows.rtt_s, mss) * flows.count
    if flows.loss <= 0:
        return "the fabric states no loss, which no line keeps for a month: CUBIC halves on each, BBR does not go by loss"
    if cubic < flows.rate_bytes_per_s * payload_fraction(_MTU):
        return (
            f"{flows.count} CUBIC streams stop at {show_rate(cubic)} at loss {flows.loss:g} (RFC 9438); BBR does not go by loss"
        )
    return f"{flows.count} CUBIC streams would fill the line at loss {flows.loss:g} too; BBR keeps the queue before it short"


def sysctl_text(region: str, flows: Flows) -> str:
    """A file for /etc/sysctl.d."""
    lines = [f"# TCP of {region} over the WAN, {NOT_VALIDATED}: /etc/sysctl.d/90-isthmus.conf, loaded by isthmus-host.sh"]
    for setting in sysctl_settings(flows):
        lines += ["", *noted(setting), f"{setting.name} = {setting.value}"]
    return "\n".join(lines) + "\n"


def wan_words(link: WanLink, regions: list[Roce]) -> str:
    """Why there is no PFC on a link, and what RDMA over it would need; a paragraph."""
    stated = link.distance_m
    distance = stated if stated is not None else link.rtt_s / fibre_rtt_s(1.0)
    wire = pfc_headroom_bytes(link.rate_bytes_per_s, distance, details=False)
    how = f"{distance / 1e3:,.0f} km" + ("" if stated is not None else f", the most that {show_seconds(link.rtt_s)} allow")
    sizes = {
        roce.switch.name: roce.switch.figure("buffer").number
        for roce in regions
        if roce.switch and "buffer" in roce.switch.figures
    }
    buffers = ", ".join(f"{name} has {show_bytes(size)} in all" for name, size in sizes.items())
    text = (
        f"**{' - '.join(link.between)}: no PFC on this link.** At {show_rate(link.rate_bytes_per_s)} over {how}, a pause comes "
        f"2 x {distance / 1e3:,.0f} km / 198,000 km/s late: it would need {show_bytes(wire)} per port and priority for what "
        "is on the wire "
        f"alone" + (f"; {buffers}. " if buffers else ". ")
    )
    text += "A port that leads out of the site must have neither `pfc_enable` nor a lossless queue. "
    if link.transport == "tcp":
        return text + "TCP crosses it, which needs neither."
    ecn = ecn_thresholds(link.rate_bytes_per_s, link.rtt_s)
    text += (
        f"RDMA crosses it: lossy, with selective repeat on the adapters; a router that marks should do so from "
        f"{show_bytes(ecn.kmin_bytes)} to {show_bytes(ecn.kmax_bytes)} ({ecn.source}). "
    )
    answer = answer_link(
        LinkQuestion(rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=link.rtt_s, loss=link.loss, distance_m=stated)
    )
    return text + " ".join(f"{each[0].upper()}{each[1:]}." for each in answer.impossible if "DCQCN" in each)
