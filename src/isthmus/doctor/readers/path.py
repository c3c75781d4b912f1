"""Paths between sites: ping, `ping -M do`, `ss -ti`, one-way delays, rate and RTT of a described link."""

import re
from collections.abc import Iterator
from dataclasses import replace

from isthmus.doctor.facts.network import PathProbe
from isthmus.doctor.text import Document, real

__all__ = ["read_paths"]

_PING_HEAD = re.compile(r"PING (?P<peer>\S+)")
_LOSS = re.compile(r"(?P<sent>\d+) packets transmitted, (?P<received>\d+)(?: packets)? received.*?(?P<loss>[\d.]+)% packet loss")
_RTT = re.compile(
    r"(?:rtt|round-trip) min/avg/max/(?:mdev|stddev) = (?P<low>[\d.]+)/(?P<mean>[\d.]+)/(?P<high>[\d.]+)/(?P<spread>[\d.]+) ms"
)
_TOO_LONG = re.compile(r"message too long|Frag needed|Packet needs to be fragmented", re.IGNORECASE)
_SS = re.compile(r"\bmss:(?P<mss>\d+)")
_SS_RTT = re.compile(r"\brtt:(?P<rtt>[\d.]+)/(?P<var>[\d.]+)")
_SS_RATE = re.compile(r"\bdelivery_rate (?P<rate>[\d.]+)(?P<unit>[KMG]?)bps")
_SS_SENT = re.compile(r"\bsegs_out:(?P<sent>\d+)")
_SS_RETRANS = re.compile(r"\bretrans:\d+/(?P<lost>\d+)")
_SS_PEER = re.compile(r"\S+:\d+\s+(?P<peer>[\d.a-fA-F:\[\]]+):\d+")
_ONEWAY = re.compile(r"one-?way (?:delay )?(?P<way>there|back|forward|reverse|->|<-)\s*[:=]?\s*(?P<ms>[\d.]+) ms", re.IGNORECASE)
_UNIT = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


def read_paths(document: Document) -> Iterator[PathProbe]:
    """One probe a ping block, a TCP socket, or a pair of one-way delays."""
    peer, loss, start, too_big = "", None, 0, False
    ways: dict[bool, float] = {}
    for index, line in enumerate(document.lines):
        if head := _PING_HEAD.match(line):
            peer, loss, start, too_big = head["peer"], None, index, False
        elif _TOO_LONG.search(line) and not too_big:
            too_big = True
            yield replace(_probe(document, index, peer=peer), packet_too_big=True)
        elif found := _LOSS.search(line):
            loss, start = real(found["loss"]) / 100, index
            if "rtt" not in "".join(document.lines[index + 1 : index + 3]) and not too_big:
                yield _probe(document, index, peer=peer, loss=loss)
        elif found := _RTT.search(line):
            yield _probe(
                document,
                start if loss else index,
                peer=peer,
                loss=loss,
                rtt=(real(found["mean"]) / 1e3, real(found["spread"]) / 1e3),
            )
        elif "mss:" in line and "rtt:" in line:
            yield _socket(document, index, line)
        elif found := _ONEWAY.search(line):
            ways[found["way"].lower() in {"there", "forward", "->"}] = real(found["ms"]) / 1e3
            if len(ways) == 2:
                yield _probe(document, index, peer=peer, oneway=(ways[True], ways[False]))
                ways = {}


def _probe(
    document: Document,
    index: int,
    *,
    peer: str,
    loss: float | None = None,
    rtt: tuple[float, float] | None = None,
    oneway: tuple[float, float] | None = None,
) -> PathProbe:
    return PathProbe(
        at=document.place(index),
        peer=peer,
        rtt_s=rtt[0] if rtt else None,
        rtt_s_spread=rtt[1] if rtt else None,
        loss=loss,
        rate_bytes_per_s=None,
        mss_bytes=None,
        oneway_s=oneway,
        packet_too_big=False,
    )


def _socket(document: Document, index: int, line: str) -> PathProbe:
    mss, rtt, rate = _SS.search(line), _SS_RTT.search(line), _SS_RATE.search(line)
    sent, lost = _SS_SENT.search(line), _SS_RETRANS.search(line)
    peer = _SS_PEER.search(document.lines[index - 1]) if index else None
    return PathProbe(
        at=document.place(index),
        peer=peer["peer"] if peer else "",
        rtt_s=real(rtt["rtt"]) / 1e3 if rtt else None,
        rtt_s_spread=real(rtt["var"]) / 1e3 if rtt else None,
        loss=int(lost["lost"]) / max(int(sent["sent"]), 1) if sent and lost else None,
        rate_bytes_per_s=real(rate["rate"]) * _UNIT[rate["unit"]] / 8 if rate else None,
        mss_bytes=int(mss["mss"]) if mss else None,
        oneway_s=None,
        packet_too_big=False,
    )
