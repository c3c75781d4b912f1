"""`isthmus link`: what one long link carries, which limit binds, what to set, what cannot be."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from isthmus.errors import InputError, nearest
from isthmus.units import BYTES, BYTES_PER_SECOND, FRACTION, METRES, SECONDS, QuantityError, Unit, quantity

__all__ = ["EXAMPLES", "link"]

EXAMPLES = """Examples:

isthmus link --rate 100Gb/s --rtt 58ms --loss 1e-6 --streams 16 --cc bbr

isthmus link --rate 100Gb/s --rtt 18ms --qps 32 --message 64MB --json

isthmus link --rate 400Gb/s --distance 1300km
"""

_CONTROLS = {"reno": "reno", "cubic": "cubic", "bbr": "bbr"}


def link(  # noqa: PLR0913, PLR0917
    rate: Annotated[str, typer.Option(help="What the link carries, IP bytes: 100Gb/s.", show_default=False)],
    rtt: Annotated[str | None, typer.Option(help="Round trip: 58ms; from the distance if left out.")] = None,
    distance: Annotated[str | None, typer.Option(help="Of the fibre: 2900km; from the RTT if left out.")] = None,
    loss: Annotated[str, typer.Option(help="Share of packets lost, one way: 1e-6 or 0.01%.")] = "0",
    streams: Annotated[int, typer.Option(help="TCP streams.", min=1)] = 8,
    cc: Annotated[str, typer.Option(help="Congestion control of the streams: reno, cubic or bbr.")] = "cubic",
    mtu: Annotated[int, typer.Option(help="IP packet size in bytes.", min=576, max=65535)] = 1500,
    message: Annotated[str, typer.Option(help="Size of one message.")] = "64MB",
    qps: Annotated[int, typer.Option(help="RDMA queue pairs.", min=1)] = 8,
    depth: Annotated[int, typer.Option(help="Messages outstanding on one QP.", min=1)] = 128,
    channels: Annotated[int, typer.Option(help="NCCL channels of one ring.", min=1, max=64)] = 16,
    buffer: Annotated[str, typer.Option(help="NCCL_BUFFSIZE.")] = "4MiB",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Say what a long link carries: one stream, many, NCCL, RDMA; what binds, what to set, what is impossible.

    Exit 1 where light itself forbids what was asked.
    """
    from isthmus.cost.link import LinkQuestion, answer_link
    from isthmus.cost.transport_rdma import NcclSettings
    from isthmus.fabric import fibre_rtt_s

    if rtt is None and distance is None:
        raise InputError("isthmus link", "neither --rtt nor --distance is given", "e.g. --rtt 58ms")
    metres = _amount(distance, METRES, "--distance") if distance else None
    control: Any = _CONTROLS.get(cc)
    if control is None:
        raise InputError("--cc", f"unknown congestion control {cc!r}", nearest(cc, _CONTROLS))
    asked = LinkQuestion(
        rate_bytes_per_s=_amount(rate, BYTES_PER_SECOND, "--rate"),
        rtt_s=_amount(rtt, SECONDS, "--rtt") if rtt else fibre_rtt_s(metres or 0.0),
        loss=_share(loss),
        distance_m=metres,
        mtu_bytes=mtu,
        streams=streams,
        control=control,
        message_bytes=_amount(message, BYTES, "--message"),
        queue_pairs=qps,
        depth=depth,
        nccl=NcclSettings(channels=channels, buffer_bytes=_amount(buffer, BYTES, "--buffer")),
    )
    answer = answer_link(asked)
    if as_json:
        print(json.dumps({"asked": asdict(asked), "answer": asdict(answer)}, indent=2))
    else:
        from isthmus.report.link_table import show_link

        show_link(asked, answer)
    if not answer.physical:
        sys.exit(1)


def _amount(text: str, unit: Unit, argument: str) -> float:
    value = _read(text, unit, argument)
    if value <= 0:
        raise InputError(argument, f"{text!r} is not above zero", f"e.g. {unit.example}")
    return value


def _share(text: str) -> float:
    value = _read(text, FRACTION, "--loss")
    if not 0 <= value < 1:
        raise InputError("--loss", f"{text!r}: a share of packets is from 0 to below 1", "e.g. 1e-6")
    return value


def _read(text: str, unit: Unit, argument: str) -> float:
    try:
        return quantity(text, unit)
    except QuantityError as error:
        raise InputError(argument, error.found, error.hint) from None
