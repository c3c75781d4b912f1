"""`isthmus collective`: how long one collective takes on a region of a fabric, how sure that is, and what limits it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.cost.collectives_calibration import read_calibration
from isthmus.cost.collectives_composed import Part, hierarchical, root, seconds_of_parts, torus
from isthmus.cost.collectives_constants import Constants, default_constants
from isthmus.cost.collectives_group import Group, class_of, ranks_of, region_group, with_ranks
from isthmus.cost.collectives_time import CollectiveTime, band_of, collective_time
from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, read_fabric, region_layout
from isthmus.formats.collective_runs import ALGORITHMS, COLLECTIVES, Algorithm, Collective, bus_factor
from isthmus.units import BYTES, QuantityError, quantity, show_bytes, show_seconds

EXAMPLES = """Examples:

isthmus collective all-reduce examples/one-node.yaml

isthmus collective all-gather examples/shenzhen-shanghai-8.yaml --region shanghai --size 256MiB --size 4GiB

isthmus collective all-reduce fabric.yaml --ranks 16 --algorithm ring --calibration calibration.yaml --json

isthmus collective all-reduce examples/shenzhen-shanghai-8.yaml --algorithm hierarchical --size 1GiB
"""
COMPOSED = ("hierarchical", "root", "torus")
"""All-reduces of several collectives in turn; the rest are NCCL's own."""
SIZES = ("64KiB", "1MiB", "8MiB", "64MiB", "512MiB", "4GiB")


def collective(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    name: Annotated[str, typer.Argument(metavar="COLLECTIVE", help=f"One of {', '.join(COLLECTIVES)}.")],
    fabric: Annotated[Path, typer.Argument(help="A fabric.yaml.")],
    region: Annotated[str | None, typer.Option("--region", help="Of the fabric; its first if left out.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", help="GPUs, filling nodes in turn; all if left out.")] = None,
    size: Annotated[list[str] | None, typer.Option("--size", help="Buffer as nccl-tests counts it, such as 1GiB.")] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", help=f"One of {', '.join((*ALGORITHMS, *COMPOSED))}.")] = "auto",
    calibration: Annotated[Path | None, typer.Option("--calibration", help="From isthmus calibrate.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
) -> None:
    """Predict one collective alone on one region: time, p10-p90, bus bandwidth, NCCL's algorithm, and the limit.

    The band holds four of five real systems of that description; `make accuracy` shows how that was measured.
    """
    _known(name, COLLECTIVES, "COLLECTIVE")
    _known(algorithm, (*ALGORITHMS, *COMPOSED), "--algorithm")
    place = read_fabric(fabric)
    names = [each.name for each in place.regions]
    chosen = region or names[0]
    _known(chosen, names, "--region")
    group = region_group(place, chosen)
    if ranks is not None:
        try:
            group = with_ranks(group, ranks)
        except ValueError as error:
            raise InputError("--ranks", str(error), f"{chosen} has {ranks_of(group)} GPUs") from None
    if not group:
        raise InputError("--ranks", "one rank sends nothing", "at least 2")
    constants = read_calibration(calibration) if calibration else default_constants()
    kind, way = cast(Collective, name), cast(Algorithm, algorithm)
    sizes = [_bytes(text) for text in size or SIZES]
    if algorithm in COMPOSED:
        _only_all_reduce(name, algorithm, ranks)
        times = [(each, _composed((place, chosen), algorithm, each, (group, constants))) for each in sizes]
    else:
        times = [(each, collective_time(kind, each, group, algorithm=way, constants=constants)) for each in sizes]
    factor = bus_factor(kind, ranks_of(group))
    if as_json:
        print(json.dumps([_plain(each, found, factor) for each, found in times], indent=2))
        return
    shape = " x ".join(f"{level.members} over {level.carrier}" for level in group)
    console = Console()
    console.print(f"{name} of {ranks_of(group)} GPUs in {chosen}: {shape}\n")
    console.print(_table(times, factor))
    if class_of(group) not in constants.classes and class_of(group) not in constants.own:
        console.print(f"[yellow]No system of class {class_of(group)} was measured: constants at their priors, bands wide.[/]")


def _only_all_reduce(name: str, algorithm: str, ranks: int | None) -> None:
    if name != "all-reduce":
        raise InputError("--algorithm", f"{algorithm} is a way to all-reduce, not to {name}", f"one of {', '.join(ALGORITHMS)}")
    if algorithm == "torus" and ranks is not None:
        raise InputError("--ranks", "a torus is taken whole", "leave out --ranks")


def _composed(where: tuple[Fabric, str], algorithm: str, size: float, over: tuple[Group, Constants]) -> CollectiveTime:
    """A composed all-reduce as a `CollectiveTime`: its limit is the step that takes longest."""
    group, constants = over
    match algorithm:
        case "hierarchical":
            parts = hierarchical(size, group, constants)
        case "root":
            parts = root(size, group, constants)
        case _:
            parts = _on_torus(where, size, over)
    seconds, (low, high) = seconds_of_parts(parts), band_of(size, group, constants)
    longest = max(parts, key=lambda part: part.seconds)
    return CollectiveTime(
        seconds=seconds, low_s=seconds * low, high_s=seconds * high, algorithm=cast(Algorithm, algorithm), protocol="auto",
        limit=longest.what,
    )  # fmt: skip


def _on_torus(where: tuple[Fabric, str], size: float, over: tuple[Group, Constants]) -> list[Part]:
    """In and out of the node around rings along each direction of the torus, whose links all GPUs of a node share."""
    group, constants = over
    region = where[0].region(where[1])
    layout = region_layout(region)
    if layout is None or layout.shape != "torus":
        raise InputError("--algorithm", f"the network of {where[1]} is no torus", f"shape: {region.network.shape}")
    inside, links = group[:1] if group[0].in_node else (), group[-1]
    near = hierarchical(size, inside, constants, ("ring", "auto")) if inside else []
    one = replace(links, rate_bytes_per_s=min(links.rate_bytes_per_s, region.network.rate_bytes_per_s or links.rate_bytes_per_s))
    return [*near[:1], *torus(size, one, layout.dimensions, constants), *near[1:]]


def _known(word: str, words: tuple[str, ...] | list[str], where: str) -> None:
    if word not in words:
        raise InputError(where, f"unknown name {word!r}", nearest(word, words))


def _bytes(text: str) -> float:
    try:
        found = quantity(text, BYTES)
    except QuantityError as error:
        raise InputError("--size", str(error), "such as --size 256MiB") from None
    if found <= 0:
        raise InputError("--size", f"{text!r} is no size", "such as --size 256MiB")
    return found


def _plain(size: float, found: CollectiveTime, factor: float) -> dict[str, object]:
    return {
        "size_bytes": size,
        "seconds": found.seconds,
        "p10_s": found.low_s,
        "p90_s": found.high_s,
        "busbw_bytes_per_s": factor * size / found.seconds,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "limit": found.limit,
    }


def _table(times: list[tuple[float, CollectiveTime]], factor: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("size", "time", "p10", "p90", "busbw"):  # on a narrow terminal the words fold, figures stay whole
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("NCCL", no_wrap=True)
    table.add_column("limit")
    for size, found in times:
        table.add_row(
            show_bytes(size),
            show_seconds(found.seconds),
            show_seconds(found.low_s),
            show_seconds(found.high_s),
            f"{show_bytes(factor * size / found.seconds)}/s",
            f"{found.algorithm} {found.protocol}",
            found.limit,
        )
    return table
