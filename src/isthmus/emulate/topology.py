"""What a tunnel is asked to be: regions, the links that join them, and the ways packets take over those."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from isthmus.emulate import control
from isthmus.emulate.link import MTU, LinkSettings, default_queue_bytes
from isthmus.errors import InputError, nearest

__all__ = ["WHERE", "EmulatedLink", "LinkChange", "check", "check_link", "next_hops", "settings_of", "shown"]

WHERE = "wind tunnel"
_LIMIT_REGIONS, _LIMIT_NODES = 64, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedLink:
    """A link between two regions, the same both ways until `Tunnel.set_link` changes one.

    Attributes:
        between: Names of the two regions.
        rate_bytes_per_s: IP bytes per direction; None for no limit.
        rtt_s: Round trip of the idle link, half of it each way.
        jitter_s: Peak deviation of the one-way delay; at most half of `rtt_s`.
        loss: Probability that a wire packet of up to 1,500 bytes is lost, one way, each by itself.
        queue_bytes: IP bytes that may wait at each end; None means one bandwidth-delay product, 128 KiB at
            least.
        up: False cuts it.
    """

    between: tuple[str, str]
    rate_bytes_per_s: float | None
    rtt_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    queue_bytes: float | None = None
    up: bool = True


class LinkChange(TypedDict, total=False):
    """What may change on a running link; what is not named stays."""

    rate_bytes_per_s: float | None
    rtt_s: float
    jitter_s: float
    loss: float
    queue_bytes: float | None
    up: bool


def next_hops(regions: int, rtt_s: Mapping[tuple[int, int], float]) -> list[list[int | None]]:
    """`[i][j]`: where region i sends what is meant for region j, by the smallest sum of RTTs; None where no way leads."""
    table: list[list[int | None]] = []
    for start in range(regions):
        first: list[int | None] = [None] * regions
        best = {start: 0.0}
        queue: list[tuple[float, int, int | None]] = [(0.0, start, None)]
        while queue:
            far, here, via = heapq.heappop(queue)
            if far > best[here]:
                continue
            first[here] = via
            for (src, dst), rtt in rtt_s.items():
                if src == here and far + rtt < best.get(dst, float("inf")):
                    best[dst] = far + rtt
                    heapq.heappush(queue, (far + rtt, dst, dst if via is None else via))
        table.append(first)
    return table


def settings_of(link: EmulatedLink) -> dict[str, Any]:
    """What the delay line is told of one direction of `link`."""
    queue = link.queue_bytes if link.queue_bytes is not None else default_queue_bytes(link.rate_bytes_per_s, link.rtt_s)
    return control.settings_to(
        LinkSettings(
            rate_bytes_per_s=link.rate_bytes_per_s, delay_s=link.rtt_s / 2, jitter_s=link.jitter_s, loss=link.loss,
            queue_bytes=queue, up=link.up,
        )
    )


def check(nodes: Mapping[str, int], links: Sequence[EmulatedLink]) -> None:
    """Raise `InputError` where regions and links do not make a tunnel."""
    if not 1 <= len(nodes) <= _LIMIT_REGIONS:
        raise InputError(WHERE, f"{len(nodes)} regions, expected 1 to {_LIMIT_REGIONS}")
    for name, count in nodes.items():
        if not 1 <= count <= _LIMIT_NODES:
            raise InputError(WHERE, f"{name} has {count} nodes, expected 1 to {_LIMIT_NODES}")
    seen: set[frozenset[str]] = set()
    for link in links:
        check_link(link, nodes)
        if frozenset(link.between) in seen:
            raise InputError(WHERE, f"two links join {link.between[0]} and {link.between[1]}", "merge them into one")
        seen.add(frozenset(link.between))


def check_link(link: EmulatedLink, nodes: Mapping[str, int]) -> None:
    """Raise `InputError` where one link cannot be."""
    name = "-".join(link.between)
    for end in link.between:
        if end not in nodes:
            raise InputError(WHERE, f"the link {name} ends in {end!r}, which is no region", nearest(end, nodes))
    faults = {
        "joins a region to itself": link.between[0] == link.between[1],
        f"has the rate {link.rate_bytes_per_s} bytes/s, expected more than 0, or None for no limit": (
            link.rate_bytes_per_s is not None and not 0 < link.rate_bytes_per_s < float("inf")
        ),
        f"has the RTT {link.rtt_s} s, expected 0 to 60": not 0 <= link.rtt_s <= 60,
        f"has the jitter {link.jitter_s} s, expected 0 to half its RTT": not 0 <= link.jitter_s <= link.rtt_s / 2,
        f"has the loss {link.loss}, expected 0 to 1": not 0 <= link.loss <= 1,
        f"has a queue of {link.queue_bytes} bytes, expected one packet of {MTU} at least": (
            link.queue_bytes is not None and not link.queue_bytes >= MTU
        ),
    }
    for fault, present in faults.items():
        if present:
            raise InputError(WHERE, f"the link {name} {fault}")


def shown(links: Mapping[tuple[str, str], EmulatedLink]) -> str:
    """The links by name, for hints."""
    return ", ".join(sorted({"-".join(link.between) for link in links.values()})) or "none"
