"""Findings on links between regions: what may ride on what, light in fibre, loss, jitter."""

from collections.abc import Callable, Iterator
from math import sqrt

from isthmus.documents import Path_
from isthmus.fabric.entries import Figure, entries, entry, number
from isthmus.fabric.finding import Finding, Subject, cite
from isthmus.fabric.levels import wan_routes
from isthmus.fabric.model import Region, WanLink
from isthmus.fabric.places import city_key, fibre_rtt_s, great_circle_m, rtt_floor_s
from isthmus.units import show_rate, show_seconds

__all__ = ["mathis_bytes_per_s", "wan_findings"]

SEGMENT_BYTES = 1448  # of 1,500 on the wire: IPv4 and TCP headers with timestamps
MATHIS_CONSTANT = sqrt(3 / 2)
STREAMS_REASONABLE = 200
_FACTS = "computed from this file"
_IP_CLASSES = ("mpls", "internet", "vpc")


def mathis_bytes_per_s(rtt_s: float, loss: float) -> float:
    """Payload bytes/s that one TCP stream keeps under random loss, with Reno's rule of growth.

        B = (MSS / RTT) sqrt(3 / 2) / sqrt(p)

    MSS = 1,448 bytes, p = share of packets lost. Leaves out: timeouts, windows; CUBIC does somewhat better
    at small p and long RTT, BBR much better. Source: Mathis, Semke, Mahdavi, Ott, Computer Communication
    Review 27(3), 1997.
    """
    return SEGMENT_BYTES / rtt_s * MATHIS_CONSTANT / sqrt(loss)


def wan_findings(subject: Subject) -> Iterator[Finding]:
    """Findings of every link, then of the WAN as a whole."""
    for index, link in enumerate(subject.fabric.wan):
        for check in _PER_LINK:
            yield from check(subject, link, ("wan", index))
    for route in wan_routes(subject.fabric):
        if route.links > 1:
            yield subject.finding(
                "relay",
                "info",
                ("wan",),
                f"no link joins {' and '.join(route.between)}: their traffic crosses {route.links} links "
                f"({show_seconds(route.rtt_s)} RTT)",
                _FACTS,
            )


def _ends(subject: Subject, link: WanLink) -> tuple[Region, Region]:
    return subject.fabric.region(link.between[0]), subject.fabric.region(link.between[1])


def _cities(subject: Subject, link: WanLink) -> tuple[str, str] | None:
    first, second = _ends(subject, link)
    return (first.city, second.city) if first.city and second.city and first.city != second.city else None


def _route_m(subject: Subject, link: WanLink) -> float | None:
    """Length of the route as stated, else the great circle between the cities, else unknown."""
    cities = _cities(subject, link)
    return link.distance_m or (great_circle_m(*cities) if cities else None)


def _rdma(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    if link.transport != "rdma":
        return
    kinds = sorted({region.network.kind for region in _ends(subject, link)})
    where = (*path, "transport")
    reach = entry("cables", "metrox").figure("reach")
    if len(kinds) > 1:
        yield subject.finding("rdma-kinds", "error", where, f"RDMA cannot cross from {kinds[0]} to {kinds[1]}; use tcp", _FACTS)
    elif kinds[0] in ("efa", "slingshot", "ethernet"):
        yield subject.finding("rdma-kinds", "error", where, f"{kinds[0]} carries no RDMA between regions; use tcp", _FACTS)
    elif kinds[0] == "infiniband" and link.link_class in _IP_CLASSES:
        yield subject.finding(
            "infiniband-over-ip",
            "error",
            where,
            f"InfiniBand does not ride an IP network ({link.link_class}); it needs dark fibre or a wave with long-haul "
            f"gear, up to {reach.number / 1e3:g} km; use tcp",
            cite(reach),
        )
    elif kinds[0] == "infiniband":
        yield from _infiniband_reach(subject, link, where)
    elif link.link_class in _IP_CLASSES:
        yield subject.finding(
            "roce-over-ip",
            "warning",
            where,
            f"RoCE v2 wants a loss-free path and {link.link_class} promises none: one lost packet sends a whole window "
            "again; prefer tcp",
            "engineering knowledge (recalled)",
        )


def _infiniband_reach(subject: Subject, link: WanLink, where: Path_) -> Iterator[Finding]:
    reach, route_m = entry("cables", "metrox").figure("reach"), _route_m(subject, link)
    if route_m is None:
        yield subject.finding(
            "infiniband-reach",
            "info",
            where,
            f"InfiniBand long-haul gear reaches {reach.number / 1e3:g} km: state the distance to have it checked",
            cite(reach),
        )
    elif route_m > reach.number:
        yield subject.finding(
            "infiniband-reach",
            "error",
            where,
            f"InfiniBand long-haul gear reaches {reach.number / 1e3:g} km, the route is {route_m / 1e3:.0f} km; use tcp",
            cite(reach),
        )


def _nvlink(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    racks = [group.kind for region in _ends(subject, link) for group in region.groups if group.in_node.domain > group.gpus]
    if racks:
        yield subject.finding(
            "nvlink-ends",
            "info",
            path,
            f"the NVLink domain of {racks[0]} ends at its rack: this link joins racks by their network adapters",
            cite(entry("nodes", racks[0]).figure("domain")),
        )


def _floor(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    delay, cities = entry("fibre", "single-mode").figure("delay"), _cities(subject, link)
    where = (*path, "rtt")
    if link.distance_m is not None and link.rtt_s < fibre_rtt_s(link.distance_m):
        yield subject.finding(
            "rtt-floor",
            "error",
            where,
            f"RTT {show_seconds(link.rtt_s)} is less than light needs in {link.distance_m / 1e3:.0f} km of fibre "
            f"({show_seconds(fibre_rtt_s(link.distance_m))})",
            cite(delay),
        )
    if cities is None:
        return
    circle_m, floor_s = great_circle_m(*cities), rtt_floor_s(*cities)
    names = f"{cities[0]} and {cities[1]}"
    if link.rtt_s < floor_s:
        yield subject.finding(
            "rtt-floor",
            "error",
            where,
            f"RTT {show_seconds(link.rtt_s)} is less than light needs in fibre between {names} ({circle_m / 1e3:.0f} km, "
            f"{show_seconds(floor_s)})",
            cite(delay),
        )
    if link.distance_m is not None and link.distance_m < circle_m:
        yield subject.finding(
            "distance",
            "error",
            (*path, "distance"),
            f"a route of {link.distance_m / 1e3:.0f} km is shorter than the great circle between {names} "
            f"({circle_m / 1e3:.0f} km)",
            "geography (recalled)",
        )


def _usual(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    """RTT against what is usual for the pair, else against 1.5 times the great circle."""
    cities = _cities(subject, link)
    usual = _typical(cities) if cities else None
    where = (*path, "rtt")
    if usual is not None and isinstance(usual.value, tuple):
        low_s, high_s = (bound / 1e3 for bound in usual.value)
        if link.rtt_s > 2 * high_s:
            yield subject.finding(
                "rtt-high",
                "warning",
                where,
                f"RTT {show_seconds(link.rtt_s)} is more than twice the {usual.text} ms usual for this pair: a detour, a "
                "queue that was full when measured, or a wrong unit",
                cite(usual),
            )
        elif link.rtt_s < low_s and cities and link.rtt_s >= rtt_floor_s(*cities):
            yield subject.finding(
                "rtt-low",
                "info",
                where,
                f"RTT {show_seconds(link.rtt_s)} is better than the {usual.text} ms usual for this pair: physics allows it, "
                "a short route has to be contracted",
                cite(usual),
            )
        return
    route_m = _route_m(subject, link)
    if route_m is None:
        return
    # Judgement: twice the longest usual route and 5 ms of equipment is more than any sound line takes.
    longest_s = fibre_rtt_s(route_m) * (1.0 if link.distance_m else 1.5)
    if link.rtt_s > 2 * longest_s + 5e-3:
        yield subject.finding(
            "rtt-high",
            "warning",
            where,
            f"RTT {show_seconds(link.rtt_s)} is more than twice the {show_seconds(longest_s)} of a route of "
            f"{route_m / 1e3:.0f} km: a detour, a full queue, or a wrong unit",
            cite(entry("fibre", "route").figure("factor")),
        )


def _typical(cities: tuple[str, str]) -> Figure | None:
    first, second = (city_key(city) for city in cities)
    for name in (f"{first}/{second}", f"{second}/{first}"):
        if name in entries("rtt"):
            return entries("rtt")[name].figure("typical")
    return None


def _loss(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    if link.loss == 0:
        return
    if link.transport == "rdma":
        yield subject.finding(
            "rdma-loss",
            "warning",
            (*path, "loss"),
            f"RDMA with {link.loss:g} loss: every lost packet sends the rest of its window again (go-back-N)",
            "engineering knowledge (recalled)",
        )
        return
    one = mathis_bytes_per_s(link.rtt_s, link.loss)
    streams = link.rate_bytes_per_s * SEGMENT_BYTES / 1500 / one
    if streams > 1:
        severe = streams > STREAMS_REASONABLE
        yield subject.finding(
            "tcp-loss",
            "warning" if severe else "info",
            (*path, "loss"),
            f"at {link.loss:g} loss and {show_seconds(link.rtt_s)} one TCP stream keeps about {show_rate(one)} (Mathis): "
            f"{streams:.0f} streams would fill {show_rate(link.rate_bytes_per_s)}"
            + ("; a single stream is useless here: use BBR, or get the loss repaired" if severe else ""),
            "Mathis et al., CCR 27(3), 1997",
        )


def _jitter(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    if link.jitter_s > link.rtt_s / 2:
        yield subject.finding(
            "jitter",
            "error",
            (*path, "jitter"),
            f"jitter {show_seconds(link.jitter_s)} exceeds the one-way delay ({show_seconds(link.rtt_s / 2)}): no packet "
            "can be that early",
            _FACTS,
        )


def _adapters(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    for region in _ends(subject, link):
        carried = sum(group.count * group.nics * group.nic.rate_bytes_per_s for group in region.groups if group.nic)
        if carried < link.rate_bytes_per_s:
            yield subject.finding(
                "wan-rate",
                "warning",
                (*path, "rate"),
                f"the adapters of {region.name} carry {show_rate(carried)} together, less than this link "
                f"({show_rate(link.rate_bytes_per_s)})",
                _FACTS,
            )


def _class(subject: Subject, link: WanLink, path: Path_) -> Iterator[Finding]:
    reach, route_m = entry("cables", "zr").figure("reach"), _route_m(subject, link)
    if link.link_class == "dark-fibre" and route_m is not None and route_m > number("cables", "zr", "reach"):
        yield subject.finding(
            "dark-fibre-reach",
            "info",
            path,
            f"{route_m / 1e3:.0f} km of dark fibre is beyond one span of 400ZR ({reach.number / 1e3:g} km): a line system "
            "with amplifiers has to be bought",
            cite(reach),
        )


_PER_LINK: tuple[Callable[[Subject, WanLink, Path_], Iterator[Finding]], ...] = (
    _rdma,
    _nvlink,
    _floor,
    _usual,
    _loss,
    _jitter,
    _adapters,
    _class,
)
