"""What a WAN really carries, from `isthmus bench wan`: rate and round trip of every link, and what an exchange takes over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean, median

from isthmus.cost.collectives_calibration import MeasuredLink
from isthmus.cost.transport import payload_fraction
from isthmus.cost.tunnel import exchange_limit_s
from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric
from isthmus.formats.wan_measurements import Goodput, RoundTrip, WanExchange, WanRow, link_name

__all__ = ["Exchanged", "exchanges", "measured_links"]

FLAT = 0.02
"""More streams that bring less than this are not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One measured all-reduce over the regions, beside the limit that the slowest measured link sets."""

    row: WanExchange
    limit_s: float

    @property
    def ratio(self) -> float:
        """Measured over the limit."""
        return self.row.seconds / self.limit_s


def measured_links(rows: Sequence[WanRow], fabric: Fabric | None) -> dict[str, MeasuredLink]:
    """By name as the fabric writes it, each link's rate (of IP bytes, the slower way), round trip, and how far repeats spread.

    The rate is that of the fewest streams that bring it within 2% of the best; ways that were full both at once tell nothing
    here, since the acknowledgements of one take from the other.

    Raises:
        InputError: The fabric has no such link.
    """
    found: dict[str, MeasuredLink] = {}
    for between in dict.fromkeys(row.between for row in rows if isinstance(row, Goodput)):
        own = [row for row in rows if isinstance(row, Goodput) and row.between == between and not row.both_ways]
        trips = [row for row in rows if isinstance(row, RoundTrip) and row.between == between]
        if not own or not trips:
            missing = "no goodput of one way at a time" if not own else "no round trip"
            raise InputError(link_name(between), f"{missing} was measured", "give all lines that isthmus bench wan wrote")
        rates = {streams: _slower_way(own, streams) for streams in {row.streams for row in own}}
        best = max(median(each) for each in rates.values())
        streams = min(count for count, each in rates.items() if median(each) >= (1 - FLAT) * best)
        share = payload_fraction()
        all_ways = [row.bytes_per_s / share for row in own if row.streams == streams]
        found[_name_in(fabric, between)] = MeasuredLink(
            rate_bytes_per_s=median(rates[streams]) / share,
            rate_low_bytes_per_s=min(all_ways),
            rate_high_bytes_per_s=max(all_ways),
            rtt_s=median(row.rtt_s for row in trips),
            rtt_low_s=min(row.rtt_min_s for row in trips),
            rtt_high_s=max(row.rtt_p99_s for row in trips),
            streams=streams,
            made_from=", ".join(sorted({row.source for row in own})),
        )
    return found


def exchanges(rows: Sequence[WanRow], links: dict[str, MeasuredLink]) -> tuple[list[Exchanged], float | None]:
    """Every measured all-reduce beside its limit, and what one takes over its limit: the geometric mean; None without any."""
    found: list[Exchanged] = []
    for row in rows:
        if not isinstance(row, WanExchange) or not links:
            continue
        rate, rtt = min(each.rate_bytes_per_s for each in links.values()), max(each.rtt_s for each in links.values())
        limit_s = exchange_limit_s(row.size_bytes, len(row.regions), rate, rtt)
        found.append(Exchanged(row=row, limit_s=limit_s))
    return found, exp(mean(log(each.ratio) for each in found)) if found else None


def _slower_way(rows: Sequence[Goodput], streams: int) -> list[float]:
    """Repeats of the way that is slower in the median."""
    ways: dict[str, list[float]] = {}
    for row in rows:
        if row.streams == streams:
            ways.setdefault(row.sender, []).append(row.bytes_per_s)
    return min(ways.values(), key=median)


def _name_in(fabric: Fabric | None, between: tuple[str, str]) -> str:
    if fabric is None:
        return link_name(between)
    for link in fabric.wan:
        if set(link.between) == set(between):
            return link_name(link.between)
    names = [link_name(link.between) for link in fabric.wan]
    raise InputError(link_name(between), f"{fabric.name} has no such link", nearest(link_name(between), names))
