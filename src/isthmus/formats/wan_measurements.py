"""What `isthmus bench wan` measured, as lines of JSON that `isthmus calibrate` takes. One way over one link:

    {"wan": ["shenzhen", "shanghai"], "from": "shenzhen", "to": "shanghai", "streams": 4, "both_ways": false,
     "goodput_bytes_per_s": 11.9e9, "retransmits": 0, "source": "..."}

the round trip of a link, {"wan": ..., "rtt_s": 0.0181, "rtt_min_s": 0.018, "rtt_p99_s": 0.0195, "source": ...}, and an all-reduce
over all regions, {"wan_exchange": ["shenzhen", "shanghai"], "size_bytes": ..., "seconds": ..., "streams": 4, "source": ...}.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, cast

from isthmus.errors import InputError, nearest

__all__ = ["Goodput", "RoundTrip", "WanExchange", "WanRow", "is_wan_line", "link_name", "read_wan_lines", "wan_line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Payload of all rails of a link together, one way.

    Attributes:
        between: The two regions, in the order of the members.
        sender, receiver: Which way.
        streams: TCP connections a rail.
        both_ways: The other way was full at the same time.
        bytes_per_s: Payload, without the beginning.
        retransmits: Segments that the sender sent again.
    """

    between: tuple[str, str]
    sender: str
    receiver: str
    streams: int
    both_ways: bool
    bytes_per_s: float
    retransmits: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Of a message of 8 bytes and its answer on an idle link, our own software included; median, least, 99th percentile."""

    between: tuple[str, str]
    rtt_s: float
    rtt_min_s: float
    rtt_p99_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WanExchange:
    """A hierarchical all-reduce of `size_bytes` of fp32 a rank over all `regions`, mean of its repeats."""

    regions: tuple[str, ...]
    size_bytes: int
    seconds: float
    streams: int
    source: str


WanRow = Goodput | RoundTrip | WanExchange
_KINDS: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({"from", "to", "streams", "both_ways", "goodput_bytes_per_s", "retransmits"}), frozenset({"wan", "source"})),
    (frozenset({"rtt_s", "rtt_min_s", "rtt_p99_s"}), frozenset({"wan", "source"})),
    (frozenset({"wan_exchange", "size_bytes", "seconds", "streams"}), frozenset({"source"})),
)


def link_name(between: Iterable[str]) -> str:
    """`shenzhen-shanghai`, as `--vary` names links too."""
    return "-".join(between)


def wan_line(row: WanRow) -> str:
    """`row` as a line of measurements.jsonl."""
    match row:
        case Goodput():
            said: dict[str, Any] = {
                "wan": list(row.between), "from": row.sender, "to": row.receiver, "streams": row.streams,
                "both_ways": row.both_ways, "goodput_bytes_per_s": row.bytes_per_s, "retransmits": row.retransmits,
            }  # fmt: skip
        case RoundTrip():
            said = {"wan": list(row.between), "rtt_s": row.rtt_s, "rtt_min_s": row.rtt_min_s, "rtt_p99_s": row.rtt_p99_s}
        case WanExchange():
            said = {
                "wan_exchange": list(row.regions), "size_bytes": row.size_bytes, "seconds": row.seconds, "streams": row.streams,
            }  # fmt: skip
    return json.dumps(said | {"source": row.source})


def is_wan_line(line: str) -> bool:
    """Whether a line of measurements.jsonl is of a WAN; the others are of collectives."""
    return line.lstrip().startswith(('{"wan"', '{"wan_exchange"'))


def read_wan_lines(path: Path | str) -> tuple[WanRow, ...]:
    """The rows of WANs in the file at `path`; none in a file of anything else.

    Raises:
        InputError: A line of a WAN is not as `isthmus bench wan` writes it.
    """
    if not str(path).endswith(".jsonl"):
        return ()
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return tuple(_row(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1) if is_wan_line(line))


def _row(line: str, where: str) -> WanRow:
    try:
        found = cast(dict[str, Any], json.loads(line))
    except json.JSONDecodeError as error:
        raise InputError(where, f"is not JSON: {error.msg}") from None
    known = next((own | both for own, both in _KINDS if own & found.keys() and own | both >= found.keys()), None)
    if known is None or known != found.keys():
        names = frozenset[str]().union(*(own | both for own, both in _KINDS))
        odd = sorted(found.keys() - names)
        if odd:
            raise InputError(where, f"unknown key {odd[0]!r}", nearest(odd[0], names))
        raise InputError(where, f"has the keys {', '.join(sorted(found))}", "lines as isthmus bench wan writes them")
    try:
        return _read(found)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(where, f"is not as isthmus bench wan writes it: {error}") from None


def _read(found: dict[str, Any]) -> WanRow:
    source = str(found["source"])
    if "wan_exchange" in found:
        return WanExchange(
            regions=tuple(map(str, found["wan_exchange"])), size_bytes=int(_above(found, "size_bytes")),
            seconds=_above(found, "seconds"), streams=int(_above(found, "streams")), source=source,
        )  # fmt: skip
    first, second = map(str, found["wan"])
    if "rtt_s" in found:
        times = {name: _above(found, name) for name in ("rtt_s", "rtt_min_s", "rtt_p99_s")}
        return RoundTrip(between=(first, second), source=source, **times)
    ways = str(found["from"]), str(found["to"])
    if set(ways) != {first, second}:
        raise ValueError(f"from {ways[0]} to {ways[1]} is no way over the link of {first} and {second}")
    return Goodput(
        between=(first, second), sender=ways[0], receiver=ways[1], streams=int(_above(found, "streams")),
        both_ways=bool(found["both_ways"]), bytes_per_s=_above(found, "goodput_bytes_per_s"),
        retransmits=int(found["retransmits"]), source=source,
    )  # fmt: skip


def _above(found: dict[str, Any], key: str) -> float:
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise ValueError(f"{key} is {value!r}, not a number above 0")
    return float(value)
