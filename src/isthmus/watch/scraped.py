"""Ask the exporters of a run's ranks, twice or again and again, and say what each region and each link does now.

Reading is here, arithmetic over two readings is pure: rates are differences of counters over the time between two scrapes.
"""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException

from isthmus.errors import InputError

__all__ = ["LinkNow", "Reading", "RegionNow", "Scraper", "links_now", "parse_addresses", "read_metrics", "regions_now"]

PORTS_MOST = 4096
SEGMENT_BYTES = 1448.0
_SAMPLE = re.compile(r"^(?P<name>isthmus_[a-z_]+)\{(?P<labels>[^}]*)\} (?P<value>\S+)(?: \d+)?$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
Key = tuple[str, str, str, str]  # name, region, rank, peer


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape of one rank.

    Attributes:
        at_s: `time.monotonic()`.
        values: (metric, region, rank, peer) -> value; peer is empty where the metric is not a link's.
    """

    at_s: float
    values: Mapping[Key, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNow:
    """What one region does.

    Attributes:
        answering: Ranks that were asked and answered.
        step: Steps of its furthest rank.
        step_s: Mean of the steps between the two readings; None where none ended.
        own_s: The same without waiting for other regions.
        waiting_share: Of step time; None likewise.
        tokens_per_s: Of its ranks together.
        together: Regions in its generation.
        discarded_tokens: Thrown away on coming back, since the start.
    """

    region: str
    answering: int
    step: int
    step_s: float | None
    own_s: float | None
    waiting_share: float | None
    tokens_per_s: float
    loss: float | None
    syncs: int
    generation: int
    together: int
    discarded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkNow:
    """What one region sends to another.

    Attributes:
        sent_bytes_per_s: Over all the time between the readings.
        goodput_bytes_per_s: While it had something to send: the sum over ranks; None where nothing was sent.
        busy_share: Of time, of the busiest rank.
        resent_share: Segments sent again, as a share of those sent.
        rtt_s: Smoothed, the longest of the ranks'.
    """

    region: str
    peer: str
    sent_bytes_per_s: float
    goodput_bytes_per_s: float | None
    busy_share: float
    resent_share: float
    rtt_s: float


def parse_addresses(texts: Iterable[str]) -> list[tuple[str, int]]:
    """`host:port`, or `host:first-last` for several ranks of a node.

    Raises:
        InputError: Something else, or far too many.
    """
    found: list[tuple[str, int]] = []
    for text in texts:
        match = re.fullmatch(r"(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):(?P<first>\d+)(-(?P<last>\d+))?", text)
        if match is None:
            raise InputError("ADDRESS", f"{text!r} is not host:port or host:first-last", "such as 127.0.0.1:9600-9607")
        first = int(match["first"])
        last = int(match["last"] or first)
        if not 1 <= first <= last <= 65535 or last - first >= PORTS_MOST:
            hint = f"ports from 1 to 65535, the first not after the last, at most {PORTS_MOST}"
            raise InputError("ADDRESS", f"{text!r} names no ports", hint)
        found += [(match["host"], port) for port in range(first, last + 1)]
    return found


def read_metrics(text: str, at_s: float) -> Reading:
    """What one exporter answered; lines of other programs are passed over.

    Raises:
        InputError: It is not Prometheus text, or has no metric of ours.
    """
    values: dict[Key, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is not None:
            labels = dict(_LABEL.findall(match["labels"]))
            if "le" not in labels:
                key = match["name"], labels.get("region", ""), labels.get("rank", ""), labels.get("peer", "")
                values[key] = _number(match["value"])
    if not values:
        raise InputError("exporter", "answers, but not with metrics of isthmus", "give the ports of ISTHMUS_EXPORT")
    return Reading(at_s, values)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("exporter", f"answers with {text[:40]!r} for a number", "give the ports of ISTHMUS_EXPORT") from None


class Scraper:
    """Asks many exporters at once.

    Args:
        addresses: (host, port) of each.
        timeout_s: For each answer.
    """

    def __init__(self, addresses: Iterable[tuple[str, int]], timeout_s: float = 2.0) -> None:
        self.addresses, self._timeout_s = list(addresses), timeout_s

    def scrape(self) -> tuple[dict[tuple[str, int], Reading], dict[tuple[str, int], str]]:
        """Readings by address, and why the others gave none."""
        with ThreadPoolExecutor(min(32, len(self.addresses))) as pool:
            answers = list(pool.map(self._ask, self.addresses))
        readings: dict[tuple[str, int], Reading] = {}
        silent: dict[tuple[str, int], str] = {}
        for address, answer in zip(self.addresses, answers, strict=True):
            if isinstance(answer, Reading):
                readings[address] = answer
            else:
                silent[address] = answer
        return readings, silent

    def _ask(self, address: tuple[str, int]) -> Reading | str:
        try:
            with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=self._timeout_s) as answer:
                text = answer.read(1 << 24).decode("utf-8", errors="replace")
            return read_metrics(text, time.monotonic())
        except HTTPException as error:  # something else listens there
            return f"does not speak HTTP ({type(error).__name__})"
        except urllib.error.URLError as error:
            return str(error.reason)
        except OSError as error:
            return str(error)


Readings = Mapping[tuple[str, int], Reading]


def regions_now(before: Readings, after: Readings) -> list[RegionNow]:
    """Every region of which a rank answered, in the order of their names."""
    found: dict[str, list[tuple[Reading | None, Reading, str, str]]] = {}
    for address, reading in after.items():
        earlier = before.get(address)
        for region, rank in sorted({key[1:3] for key in reading.values}):
            found.setdefault(region, []).append((earlier, reading, region, rank))
    return [_region(region, ranks) for region, ranks in sorted(found.items())]


def _region(region: str, ranks: list[tuple[Reading | None, Reading, str, str]]) -> RegionNow:
    def total(name: str) -> float:
        return sum(_grown(earlier, now, (f"isthmus_{name}", region, rank, "")) for earlier, now, _, rank in ranks)

    def last(name: str) -> list[float]:
        keys = [(now, (f"isthmus_{name}", region, rank, "")) for _, now, _, rank in ranks]
        return [now.values[key] for now, key in keys if key in now.values]

    steps, seconds, waiting = total("step_seconds_count"), total("step_seconds_sum"), total("waiting_seconds_total")
    between = [now.at_s - earlier.at_s for earlier, now, _, _ in ranks if earlier is not None]
    # The gauge says 0 before a rank's first step.
    begun = [each for each in ranks if each[1].values.get(("isthmus_steps_total", region, each[3], ""))]
    losses = [now.values[key] for _, now, _, rank in begun if (key := ("isthmus_loss", region, rank, "")) in now.values]
    return RegionNow(
        region=region,
        answering=len(ranks),
        step=int(max(last("steps_total"), default=0)),
        step_s=seconds / steps if steps else None,
        own_s=max(0.0, seconds - waiting) / steps if steps else None,
        waiting_share=min(1.0, waiting / seconds) if seconds else None,
        tokens_per_s=total("tokens_total") / max(between) if between else 0.0,
        loss=sum(losses) / len(losses) if losses else None,
        syncs=int(max(last("syncs_total"), default=0)),
        generation=int(max(last("generation"), default=0)),
        together=int(max(last("regions"), default=0)),
        discarded_tokens=int(sum(last("discarded_tokens_total"))),
    )


def links_now(before: Readings, after: Readings) -> list[LinkNow]:
    """Every link of which a rank answered twice."""
    found: dict[tuple[str, str], list[tuple[Reading, Reading, str]]] = {}
    for address, reading in after.items():
        earlier = before.get(address)
        if earlier is not None:
            for _, region, rank, peer in {key for key in reading.values if key[0] == "isthmus_link_sent_bytes_total"}:
                found.setdefault((region, peer), []).append((earlier, reading, rank))
    return [_link(*ends, ranks) for ends, ranks in sorted(found.items())]


def _link(region: str, peer: str, ranks: list[tuple[Reading, Reading, str]]) -> LinkNow:
    sent_all = resent_all = goodput = busy_share = rtt_s = longest_s = 0.0
    for earlier, now, rank in ranks:
        key = region, rank, peer
        sent, busy, resent = (
            _grown(earlier, now, (f"isthmus_link_{name}_total", *key)) for name in ("sent_bytes", "busy_seconds", "retransmits")
        )
        between_s = now.at_s - earlier.at_s
        sent_all, resent_all, longest_s = sent_all + sent, resent_all + resent, max(longest_s, between_s)
        goodput += sent / busy if busy else 0.0
        busy_share = max(busy_share, min(1.0, busy / between_s) if between_s else 0.0)
        rtt_s = max(rtt_s, now.values.get(("isthmus_link_rtt_seconds", *key), 0.0))
    return LinkNow(
        region=region,
        peer=peer,
        sent_bytes_per_s=sent_all / longest_s if longest_s else 0.0,
        goodput_bytes_per_s=goodput or None,
        busy_share=busy_share,
        resent_share=min(1.0, resent_all * SEGMENT_BYTES / sent_all) if sent_all else 0.0,
        rtt_s=rtt_s,
    )


def _grown(earlier: Reading | None, now: Reading, key: Key) -> float:
    """By how much a counter has grown; one that is smaller than before began anew, with its rank or its link."""
    if earlier is None:
        return 0.0
    before, after = earlier.values.get(key, 0.0), now.values.get(key, 0.0)
    return after - before if after >= before else after
