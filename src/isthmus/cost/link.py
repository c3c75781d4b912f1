"""What one long link carries, for each way of using it: which limit binds, what must be set, what cannot be."""

from dataclasses import dataclass, field
from math import ceil, inf

from isthmus.cost.dcqcn import DcqcnResult, play_dcqcn
from isthmus.cost.efficiency import RDMA_PAYLOAD, TCP_WINDOW
from isthmus.cost.lossless import SHARED_BUFFERS, EcnThresholds, ecn_thresholds, pfc_headroom_bytes, pfc_reach_m
from isthmus.cost.transport import (
    bandwidth_delay_product_bytes,
    payload_fraction,
    streams_to_fill,
    tcp_buffer_bytes,
    tcp_rate_bytes_per_s,
    window_rate_bytes_per_s,
)
from isthmus.cost.transport_loss import Control, loss_rate_bytes_per_s, loss_to_fill, slow_start_s
from isthmus.cost.transport_rdma import (
    HOST_MEMORY_BYTES_PER_S,
    NCCL_CHANNELS_MOST,
    QP_UNACKED_BYTES,
    NcclSettings,
    go_back_n_share,
    host_relay_bytes_per_s,
    nccl_buffer_to_fill_bytes,
    nccl_rate_bytes_per_s,
    qps_to_fill,
    rdma_rate_bytes_per_s,
)
from isthmus.fabric import fibre_rtt_s, pcie_rate_bytes_per_s
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = ["Carried", "LinkAnswer", "LinkQuestion", "Setting", "answer_link", "carried_ways"]

_KERNEL = "kernel Documentation/networking/ip-sysctl"
_NCCL = "NVIDIA/nccl src/init.cc, src/include/device.h, net_ib"
_GUESS = "perftest; one report of ConnectX-7 (developer.nvidia.com forum 345696): a guess until measured on your adapter"
_RDMA_MTU_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkQuestion:
    """A link and how it is meant to be used; `rate_bytes_per_s` counts IP bytes, `loss` is a share of packets, one way."""

    rate_bytes_per_s: float
    rtt_s: float
    loss: float = 0.0
    distance_m: float | None = None
    mtu_bytes: int = 1500
    streams: int = 8
    control: Control = "cubic"
    message_bytes: float = 64e6
    queue_pairs: int = 8
    depth: int = 128
    nccl: NcclSettings = field(default_factory=NcclSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One way of using the link.

    Attributes:
        what: The way.
        rate_bytes_per_s: Payload, all its streams together.
        bind: What limits it.
        message_s: One message of the size asked for, streams open and warm: half an RTT and its bytes.
        source: Where the limit comes from.
    """

    what: str
    rate_bytes_per_s: float
    bind: str
    message_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Something to set: `name` = `value`, because."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAnswer:
    """Everything about one link.

    Attributes:
        product_bytes: Bandwidth-delay product: what must be in flight.
        carried: Ways of using it.
        slow_start_s: Until one new stream reaches the link's rate.
        loss_most: Most loss at which one stream of this control fills the link.
        settings: What must be set to fill it.
        impossible: What cannot be, and why.
        physical: Whether the RTT is one that light allows.
        headroom_bytes: PFC headroom of one priority and port; `headroom_wire_bytes` of the wire alone.
        ecn: Thresholds for this rate and RTT.
        dcqcn: What its control loop does.
        host_relay_bytes_per_s: Ceiling of what passes through a host's memory with sockets and TLS, whatever the link: PCIe 5.0
            x16 and one socket of DDR5.
    """

    product_bytes: float
    carried: tuple[Carried, ...]
    slow_start_s: float
    loss_most: float
    settings: tuple[Setting, ...]
    impossible: tuple[str, ...]
    physical: bool
    headroom_bytes: float | None
    headroom_wire_bytes: float
    ecn: EcnThresholds
    dcqcn: DcqcnResult
    host_relay_bytes_per_s: float


def answer_link(asked: LinkQuestion) -> LinkAnswer:
    """What `asked` carries and needs."""
    rate, rtt = asked.rate_bytes_per_s, asked.rtt_s
    distance = _distance_m(asked)
    ecn = ecn_thresholds(rate, rtt)
    loop = play_dcqcn(rate, rtt, ecn)
    mss = asked.mtu_bytes * payload_fraction(asked.mtu_bytes)
    fits = rate * 8 <= 800e9
    physical = asked.distance_m is None or rtt >= fibre_rtt_s(asked.distance_m) * (1 - 1e-6)
    return LinkAnswer(
        product_bytes=bandwidth_delay_product_bytes(rate, rtt),
        carried=tuple(carried_ways(asked)),
        slow_start_s=slow_start_s(rate, rtt, mss),
        loss_most=loss_to_fill(rate * payload_fraction(asked.mtu_bytes), rtt, asked.control, mss),
        settings=tuple([*_tcp_settings(asked, mss), *_nccl_settings(asked)]),
        impossible=tuple(_impossible(asked, distance, loop, physical)),
        physical=physical,
        headroom_bytes=pfc_headroom_bytes(rate, distance) if fits else None,
        headroom_wire_bytes=pfc_headroom_bytes(rate, distance, details=False),
        ecn=ecn,
        dcqcn=loop,
        host_relay_bytes_per_s=host_relay_bytes_per_s(pcie_rate_bytes_per_s("5.0 x16"), HOST_MEMORY_BYTES_PER_S, inf, 2),
    )


def _distance_m(asked: LinkQuestion) -> float:
    """Of the fibre: as stated, else the most that the RTT allows."""
    return asked.distance_m if asked.distance_m is not None else asked.rtt_s / fibre_rtt_s(1.0)


def carried_ways(asked: LinkQuestion) -> list[Carried]:
    """Every way of using the link, what it carries and what binds it."""
    mss = asked.mtu_bytes * payload_fraction(asked.mtu_bytes)
    stock = TCP_WINDOW.value
    tuned = 2 * bandwidth_delay_product_bytes(asked.rate_bytes_per_s, asked.rtt_s) / asked.streams
    control = asked.control
    law = {
        "reno": "Padhye et al., SIGCOMM 1998",
        "cubic": "RFC 9438, section 5.1",
        "bbr": "Cardwell et al., ACM Queue 14(5), 2016",
    }[control]
    many = f"{asked.streams} TCP streams"
    found = [
        _tcp(asked, "1 TCP stream, Linux as it comes (CUBIC)", (1, stock, mss), "cubic", f"window: {_KERNEL}; loss: RFC 9438"),
        _tcp(asked, f"{many}, {control}, windows as they come", (asked.streams, stock, mss), control, f"{_KERNEL}; {law}"),
        _tcp(asked, f"{many}, {control}, windows set", (asked.streams, max(stock, tuned), mss), control, law),
    ]
    payload = asked.rate_bytes_per_s * payload_fraction(asked.mtu_bytes)
    lossy = loss_rate_bytes_per_s("cubic", payload, asked.loss, asked.rtt_s, mss)
    names = f"{asked.nccl.channels} channels of {show_bytes(asked.nccl.buffer_bytes)}"
    rate, bind = nccl_rate_bytes_per_s(payload, asked.rtt_s, asked.nccl, True, (stock, lossy))
    found.append(_row(asked, f"NCCL over sockets, {names}", rate, bind, _NCCL))
    rdma = asked.rate_bytes_per_s * RDMA_PAYLOAD.value
    for unacked, word in ((inf, ""), (QP_UNACKED_BYTES, f", adapter holds {show_bytes(QP_UNACKED_BYTES)} a QP")):
        rate, bind = nccl_rate_bytes_per_s(rdma, asked.rtt_s, asked.nccl, False, (unacked, 0.0))
        what = f"NCCL over RDMA, {names}, {asked.nccl.qps} QP each{word}"
        found.append(_lossy(asked, what, rate, bind, _GUESS if word else _NCCL))
    for pairs in dict.fromkeys((1, asked.queue_pairs)):
        message = min(asked.message_bytes, 65536.0)
        rate, bind = rdma_rate_bytes_per_s(pairs, asked.depth, message, asked.rtt_s)
        rate, bind = min((rate, bind), (rdma, "link"), key=lambda limit: limit[0])
        what = f"{pairs} RDMA QP{'s' if pairs > 1 else ''}, depth {asked.depth} x {show_bytes(message)}"
        found.append(_lossy(asked, what, rate, bind, _GUESS))
    return found


def _tcp(asked: LinkQuestion, what: str, how: tuple[int, float, float], control: Control, source: str) -> Carried:
    streams, window, mss = how
    limit = tcp_rate_bytes_per_s(asked.rate_bytes_per_s, asked.rtt_s, 0.0, streams, window, asked.mtu_bytes)
    lossy = streams * loss_rate_bytes_per_s(control, asked.rate_bytes_per_s, asked.loss, asked.rtt_s, mss)
    rate, bind = min((limit.rate_bytes_per_s, limit.bind), (lossy, "loss"), key=lambda each: each[0])
    return _row(asked, what, rate, bind, source)


def _lossy(asked: LinkQuestion, what: str, rate: float, bind: str, source: str) -> Carried:
    """RDMA after loss: the NIC goes back to the lost packet and sends everything since again."""
    share = go_back_n_share(asked.loss, rate * asked.rtt_s / _RDMA_MTU_BYTES)
    if share < 0.9:
        bind = "loss (go-back-N)"
    return _row(asked, what, rate * share, bind, source)


def _row(asked: LinkQuestion, what: str, rate: float, bind: str, source: str) -> Carried:
    seconds = asked.rtt_s / 2 + asked.message_bytes / rate
    return Carried(what=what, rate_bytes_per_s=rate, bind=bind, message_s=seconds, source=source)


def _tcp_settings(asked: LinkQuestion, mss: float) -> list[Setting]:
    product = bandwidth_delay_product_bytes(asked.rate_bytes_per_s, asked.rtt_s)
    found: list[Setting] = []
    if product / asked.streams > TCP_WINDOW.value:
        size = str(tcp_buffer_bytes(asked.rate_bytes_per_s, asked.rtt_s, asked.streams))
        why = (
            f"{asked.streams} streams must keep {show_bytes(product)} in flight, twice that to grow; half of a buffer is window "
            f"(tcp_adv_win_scale = 1)"
        )
        found += [
            Setting(name="net.core.rmem_max, net.core.wmem_max", value=size, reason="caps what an application may ask for"),
            Setting(name="net.ipv4.tcp_rmem", value=f"4096 131072 {size}", reason=why),
            Setting(name="net.ipv4.tcp_wmem", value=f"4096 65536 {size}", reason="what is sent stays until it is acknowledged"),
            Setting(name="net.ipv4.tcp_slow_start_after_idle", value="0", reason="or every pause longer than an RTO starts anew"),
        ]
    lossy = loss_rate_bytes_per_s(asked.control, asked.rate_bytes_per_s, asked.loss, asked.rtt_s, mss)
    payload = asked.rate_bytes_per_s * payload_fraction(asked.mtu_bytes)
    if asked.streams * lossy < payload:
        if asked.control != "bbr":
            why = f"{asked.streams} {asked.control} streams stop at {show_rate(asked.streams * lossy)} at loss {asked.loss:g}"
            found.append(Setting(name="net.ipv4.tcp_congestion_control", value="bbr", reason=f"{why}; BBR does not go by loss"))
            found.append(Setting(name="net.core.default_qdisc", value="fq", reason="BBR paces its packets"))
        count = ceil(payload / lossy) if lossy > 0 else None
        if count is not None:
            found.append(Setting(name="streams", value=str(count), reason=f"as {asked.control} fills the link only together"))
    reno = streams_to_fill(asked.rate_bytes_per_s, asked.rtt_s, asked.loss, TCP_WINDOW.value)
    why = "fills it with windows as they come and by the lowest law (Reno): what `isthmus plan` counts with"
    found.append(Setting(name="isthmus streams, all rails", value=str(reno), reason=why))
    return found


def _nccl_settings(asked: LinkQuestion) -> list[Setting]:
    rate, rtt, nccl = asked.rate_bytes_per_s * RDMA_PAYLOAD.value, asked.rtt_s, asked.nccl
    product, found = rate * rtt, list[Setting]()
    if nccl.channels * nccl.buffer_bytes < product:
        buffer = nccl_buffer_to_fill_bytes(rate, rtt, nccl.channels)
        memory = 2 * buffer * nccl.channels
        kept = show_bytes(nccl.channels * buffer)
        why = f"{nccl.channels} channels keep {kept} in flight; costs {show_bytes(memory)} of GPU memory a ring"
        found.append(Setting(name="NCCL_BUFFSIZE", value=str(buffer), reason=why))
        most = nccl_buffer_to_fill_bytes(rate, rtt, NCCL_CHANNELS_MOST)
        why = f"or {NCCL_CHANNELS_MOST} channels (the most there are), then NCCL_BUFFSIZE={most} is enough"
        if most < buffer:
            found.append(Setting(name="NCCL_MIN_NCHANNELS", value=str(NCCL_CHANNELS_MOST), reason=why))
    pairs = ceil(qps_to_fill(rate, rtt) / nccl.channels)
    if pairs > nccl.qps:
        limit = min(128, pairs)
        seen = f"{show_bytes(QP_UNACKED_BYTES)} unacknowledged a QP seen on ConnectX-7 (one report)"
        why = f"{seen}: {pairs * nccl.channels} QPs in all"
        if pairs > limit:
            why += f"; NCCL takes {limit} at most, so RDMA does not fill this link"
        found.append(Setting(name="NCCL_IB_QPS_PER_CONNECTION", value=str(limit), reason=why))
    if window_rate_bytes_per_s(nccl.channels * TCP_WINDOW.value, rtt) < rate:
        sockets = min(16, ceil(product / nccl.channels / TCP_WINDOW.value))
        why = "over sockets: more connections a channel where windows stay as they are (threads x sockets <= 64)"
        found.append(Setting(name="NCCL_NSOCKS_PERTHREAD", value=str(sockets), reason=why))
    return found


def _impossible(asked: LinkQuestion, distance: float, loop: DcqcnResult, physical: bool) -> list[str]:
    found: list[str] = []
    if not physical:
        floor = fibre_rtt_s(asked.distance_m or 0.0)
        found.append(
            f"RTT {show_seconds(asked.rtt_s)} over {distance / 1e3:,.0f} km: light in fibre needs {show_seconds(floor)} "
            "(4.897 us/km one way, ITU-T G.652 fibre)"
        )
    wire = pfc_headroom_bytes(asked.rate_bytes_per_s, distance, details=False)
    holds = [name for name, size in SHARED_BUFFERS.items() if size >= wire]
    if len(holds) < len(SHARED_BUFFERS):
        small = max(size for size in SHARED_BUFFERS.values() if size < wire)
        reach = pfc_reach_m(asked.rate_bytes_per_s, small)
        who = f"only {', '.join(holds)} could hold it (recalled)" if holds else "no switch we know holds it"
        found.append(
            f"lossless RoCE (PFC): {show_bytes(wire)} of headroom a port and priority for {distance / 1e3:,.0f} km; {who}; "
            f"{show_bytes(small)}, all of a switch's buffer, ends at {reach / 1e3:,.1f} km"
        )
    if loop.verdict == "too slow":
        found.append(
            f"RoCE under DCQCN: its loop of microseconds acts {show_seconds(asked.rtt_s)} late; fluid model: "
            f"{loop.utilisation:.0%} of the link, queue up to {show_bytes(loop.queue_bytes_max)}"
        )
    if asked.rtt_s > 1e-3:
        found.append("SHARP over this link: its trees live in one InfiniBand subnet")
    return found

