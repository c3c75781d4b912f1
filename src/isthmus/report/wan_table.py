"""What `isthmus bench wan` found, for the terminal: round trips, goodput by streams, and what is not as the fabric says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.table import Table

from isthmus.calibrate.wan import Exchanged, measured_links
from isthmus.cost.collectives_calibration import Calibration
from isthmus.cost.transport import bandwidth_delay_product_bytes, payload_fraction, tcp_buffer_bytes
from isthmus.cost.tunnel import exchange_limit_s
from isthmus.fabric import Fabric, WanLink
from isthmus.formats.wan_measurements import Goodput, RoundTrip, WanExchange, WanRow, link_name
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = ["Driven", "exchange_table", "link_table", "predicted_exchanges", "remarks", "trip_table"]

SHORT, LONG = 0.95, 1.10
"""Less goodput than this share of what the fabric states, or a round trip longer than this many times, is said."""


@dataclass(frozen=True, slots=True)
class Driven:
    """How the sender's kernel drove one way of a link: see `isthmus.runtime.wan_bench.LinkState`."""

    sender: str
    receiver: str
    streams: int
    congestion: str
    window_limit_bytes: int


def trip_table(rows: Sequence[WanRow], stated: Fabric | None) -> Table:
    """Round trips of every pair of regions."""
    table = _table("Round trip of 8 bytes, our software included", ("link", "median", "least", "p99", "stated"))
    for row in rows:
        if isinstance(row, RoundTrip):
            of = _link(stated, row.between)
            times = map(show_seconds, (row.rtt_s, row.rtt_min_s, row.rtt_p99_s))
            table.add_row(link_name(row.between), *times, show_seconds(of.rtt_s) if of else "-")
    return table


def link_table(rows: Sequence[WanRow], stated: Fabric | None) -> Table:
    """Goodput of every way, alone and with the other way full, medians of repeats."""
    title = "Goodput, all rails together: payload after the first quarter"
    table = _table(title, ("from", "to", "streams", "alone", "of stated", "both ways", "sent again"))
    own = [row for row in rows if isinstance(row, Goodput)]
    for sender, receiver, streams in dict.fromkeys((row.sender, row.receiver, row.streams) for row in own):
        same = [row for row in own if (row.sender, row.receiver, row.streams) == (sender, receiver, streams)]
        alone = median(row.bytes_per_s for row in same if not row.both_ways)
        both = median(row.bytes_per_s for row in same if row.both_ways)
        of = _link(stated, (sender, receiver))
        share = f"{alone / (of.rate_bytes_per_s * payload_fraction()):.0%}" if of else "-"
        again = str(sum(row.retransmits for row in same))
        table.add_row(sender, receiver, str(streams), show_rate(alone), share, show_rate(both), again)
    return table


def predicted_exchanges(rows: Sequence[WanRow], stated: Fabric, calibration: Calibration | None) -> list[Exchanged]:
    """Every measured all-reduce beside what the fabric's links, or the calibration's, say that it takes.

    Without a calibration that is the limit of the slowest stated link; with one, the limit of the slowest measured link times
    what measured all-reduces took over theirs.
    """
    links = calibration.wan if calibration else {}
    pairs = [(each.rate_bytes_per_s, each.rtt_s) for each in links.values()]
    pairs = pairs or [(each.rate_bytes_per_s, each.rtt_s) for each in stated.wan]
    rate, rtt, over = min(rate for rate, _ in pairs), max(rtt for _, rtt in pairs), (calibration and calibration.exchange) or 1.0
    return [
        Exchanged(row=row, limit_s=over * exchange_limit_s(row.size_bytes, len(row.regions), rate, rtt))
        for row in rows
        if isinstance(row, WanExchange)
    ]


def exchange_table(found: Sequence[Exchanged], *, calibrated: bool) -> Table:
    """Predicted beside measured."""
    by = "the calibration" if calibrated else "what the fabric states"
    table = _table(f"All-reduce over the regions, predicted by {by}", ("size", "predicted", "measured", "predicted / measured"))
    for each in found:
        table.add_row(
            show_bytes(each.row.size_bytes), show_seconds(each.limit_s), show_seconds(each.row.seconds), f"{1 / each.ratio:.2f}"
        )
    return table


def remarks(rows: Sequence[WanRow], stated: Fabric | None, driven: Sequence[Driven]) -> Iterator[str]:
    """What a user should know: links that are not what the fabric says, streams to take, buffers that are too small."""
    for name, link in measured_links(rows, stated).items():
        between = _between(name, rows)
        of = _link(stated, between)
        rate, rtt = show_rate(link.rate_bytes_per_s), show_seconds(link.rtt_s)
        yield f"{name}: {rate} of IP bytes on the slower way with {link.streams} streams a rail, round trip {rtt}"
        if of and link.rate_bytes_per_s < SHORT * of.rate_bytes_per_s:
            yield f"  below the fabric's {show_rate(of.rate_bytes_per_s)}: calibrate on this, or have the line looked at"
        if of and link.rtt_s > LONG * of.rtt_s:
            yield f"  round trip longer than the fabric's {show_seconds(of.rtt_s)}"
        ways = [each for each in driven if {each.sender, each.receiver} == set(between) and each.streams == link.streams]
        yield f"  congestion control {', '.join(sorted({each.congestion for each in ways}))}"
        yield from _buffers(link.rate_bytes_per_s if of is None else of.rate_bytes_per_s, link.rtt_s, ways)


def _buffers(rate: float, rtt: float, ways: Sequence[Driven]) -> Iterator[str]:
    streams, limit = ways[0].streams, min(each.window_limit_bytes for each in ways)
    wanted = bandwidth_delay_product_bytes(rate, rtt)
    if streams * limit >= wanted:
        return
    yield (
        f"  buffers hold {show_bytes(limit)} a stream, {show_bytes(streams * limit)} in all, and the link {show_bytes(wanted)}: "
        f"let net.ipv4.tcp_wmem, tcp_rmem and net.core.wmem_max, rmem_max grow to {tcp_buffer_bytes(rate, rtt, streams)}"
    )


def _between(name: str, rows: Sequence[WanRow]) -> tuple[str, str]:
    """The regions of the link called `name`, in whichever order."""
    found = (row.between for row in rows if isinstance(row, Goodput))
    return next(between for between in found if name in (link_name(between), link_name(between[::-1])))


def _link(fabric: Fabric | None, between: tuple[str, str]) -> WanLink | None:
    return next((link for link in fabric.wan if set(link.between) == set(between)), None) if fabric else None


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("link", "from", "to") else "right", overflow="fold")
    return table
