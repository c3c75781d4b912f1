"""`isthmus bench wan`: measure the links between regions, through the rails that training takes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from isthmus.cli.bench import sizes_between
from isthmus.errors import InfeasibleError, InputError, nearest

if TYPE_CHECKING:
    from isthmus.cost.collectives_calibration import Calibration
    from isthmus.fabric import Fabric
    from isthmus.formats.nccl_table import Measured
    from isthmus.formats.wan_measurements import WanRow
    from isthmus.plan import CodecName
    from isthmus.runtime.environment import RankEnvironment
    from isthmus.runtime.wan_bench import WanBench

EXAMPLES = """Examples:

isthmus bench wan --members members.json --region shenzhen --keys keys --fabric fabric.yaml -o wan.jsonl
    # on the first node of every region, within a minute of each other; the first region of members.json prints and writes

torchrun --nproc-per-node 8 -m isthmus bench wan --members members.json --region shenzhen --keys keys
    # all rails of a node at once; each region has as many ranks as members.json has rails of it

isthmus bench wan --here west=2,east=2           # over this machine's loopback: what the software can do

isthmus calibrate wan.jsonl --fabric fabric.yaml -o calibration.yaml         # then isthmus plan ... --calibration
"""
_LIMIT_S = 1800.0


def bench_wan(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    members: Annotated[Path | None, typer.Option(help="members.json: every region's rail addresses.")] = None,
    region: Annotated[str | None, typer.Option(help="The region this node belongs to.")] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of this region's certificate, from `isthmus keys`.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="In the clear, beyond loopback too.")] = False,
    here: Annotated[str | None, typer.Option(help="All regions on this machine: REGION=RANKS,REGION=RANKS.")] = None,
    fabric: Annotated[Path | None, typer.Option(help="What the links should be: to compare, and to predict all-reduces.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="From isthmus calibrate: predict by these links instead.")] = None,
    streams: Annotated[str, typer.Option(help="TCP connections a rail, one after the other.")] = "1,2,4,8",
    seconds: Annotated[float, typer.Option(help="About how long each transfer is to take.", min=0.1, max=600)] = 1.0,
    repeats: Annotated[int, typer.Option(help="Transfers of each kind.", min=1, max=100)] = 2,
    least: Annotated[str, typer.Option("--from", "-b", help="The smallest all-reduce.")] = "1 MB",
    most: Annotated[str, typer.Option("--to", "-e", help="The largest.")] = "16 MB",
    factor: Annotated[int, typer.Option("--factor", "-f", help="From one size to the next.", min=2, max=64)] = 4,
    codec: Annotated[str, typer.Option(help="Of what all-reduces send between regions.")] = "none",
    iters: Annotated[int, typer.Option("--iters", "-n", help="Timed all-reduces a size.", min=1)] = 3,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="All-reduces before them.", min=0)] = 1,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Append measurements.jsonl here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON lines on stdout.")] = False,
) -> None:
    """Measure every link between regions: round trip, goodput one way and both ways by number of streams, all-reduce.

    It goes through the transport that training takes (streams, TLS where there are keys), over all rails at once. Start it on
    every region; it says on stderr what it does. `isthmus calibrate` takes what it writes.
    """
    wanted = _streams(streams)
    sizes = sorted({size // 4 * 4 for size in sizes_between(least, most, factor)})  # whole fp32 elements
    _check_codec(codec)
    if output is not None and not output.parent.is_dir():
        raise InputError("--output", f"no such folder: {str(output.parent)!r}", "create it, or write elsewhere")
    if here is not None:
        from isthmus.run import parse_regions

        if members is not None or region is not None or keys is not None:
            raise InputError("--here", "all regions are on this machine: leave out --members, --region, --keys")
        regions = parse_regions(here)
        if len(regions) < 2:
            raise InputError("--here", f"{here!r} has one region: a link needs two", "--here west=1,east=1")
        _check_regions(list(regions), _stated(fabric, calibration)[0])
        _all_here(regions)
        return
    stated, known = _stated(fabric, calibration)
    from isthmus.runtime.wan.frames import RailError
    from isthmus.runtime.wan_bench import opened

    environment = _environment(members, region, keys, insecure=insecure)
    _check_regions([each.name for each in environment.members.regions] if environment.members else [], stated)
    try:
        with opened(environment) as bench:
            rows, table = _measured(bench, wanted, (seconds, repeats), (sizes, cast("CodecName", codec), warmup, iters))
    except RailError as error:
        raise InfeasibleError(str(error), "start it on every region within a minute, with the same options") from None
    if not bench.leads:
        return
    if output is not None:
        from isthmus.formats.wan_measurements import wan_line

        with output.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{wan_line(row)}\n" for row in rows)
        print(f"measurements appended to {output}", file=sys.stderr)
    _show(bench, (rows, table), (warmup, iters), (stated, known), as_json=as_json)


def _streams(text: str) -> list[int]:
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if not (part.isascii() and part.isdecimal()) or not 1 <= int(part) <= 64:
            raise InputError("--streams", f"{part!r} is not a number of 1 to 64", "e.g. --streams 1,2,4,8")
    return list(dict.fromkeys(map(int, found)))


def _check_codec(codec: str) -> None:
    known = ("none", "bf16", "int8", "int4")
    if codec not in known:
        raise InputError("--codec", f"unknown codec {codec!r}", nearest(codec, known))


def _stated(fabric: Path | None, calibration: Path | None) -> "tuple[Fabric | None, Calibration | None]":
    from isthmus.cost.collectives_calibration import read_measured_links
    from isthmus.fabric import read_fabric

    if calibration is not None and fabric is None:
        raise InputError("--calibration", "predicts by a fabric's links", "give --fabric too")
    return read_fabric(fabric) if fabric else None, read_measured_links(calibration) if calibration else None


def _check_regions(names: Sequence[str], stated: "Fabric | None") -> None:
    if stated is None:
        return
    for first in range(len(names)):
        for second in names[first + 1 :]:
            if not any({names[first], second} == set(link.between) for link in stated.wan):
                hint = nearest(second, [each.name for each in stated.regions])
                raise InputError("--fabric", f"{stated.name} has no link between {names[first]} and {second}", hint)


def _environment(members: Path | None, region: str | None, keys: Path | None, *, insecure: bool) -> "RankEnvironment":
    """The rank environment, with the options over it; a region of one rail needs no torchrun."""
    from isthmus.runtime.environment import read_environment, read_members

    variables = dict(os.environ)
    for name, value in (("ISTHMUS_MEMBERS", members), ("ISTHMUS_REGION", region), ("ISTHMUS_KEYS", keys)):
        if value is not None:
            variables[name] = str(value)
    if insecure:
        variables["ISTHMUS_INSECURE"] = "1"
    if "RANK" not in variables and (path := variables.get("ISTHMUS_MEMBERS")):
        known = read_members(path)
        number = known.index(variables.get("ISTHMUS_REGION", ""))
        if number >= 0 and known.regions[number].ranks > 1:
            ranks = known.regions[number].ranks
            hint = f"torchrun --nproc-per-node {ranks} -m isthmus bench wan ..."
            raise InputError("RANK", f"is not set, and the region has {ranks} ranks", hint)
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        variables |= alone
    return read_environment(variables)


def _all_here(regions: dict[str, int]) -> None:
    """Start every rank of every region with this command's other options; the first one's output is ours."""
    from isthmus.plan import Strategy
    from isthmus.runtime.loopback import lone_plan, prepare

    arguments = [each for each in sys.argv[1:] if not each.startswith("--here=")]
    if "--here" in arguments:
        del arguments[arguments.index("--here") : arguments.index("--here") + 2]
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as name:
        folder = Path(name)
        environments = prepare(regions, lone_plan(Strategy(name="bench", kind="hierarchical")), folder)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number, ((region, rank), environment) in enumerate(environments.items()):
                log = None if number == 0 else open(folder / f"{region}-{rank}.log", "wb")  # noqa: SIM115 - closed below
                command = [sys.executable, "-m", "isthmus", *arguments]
                inherited = {key: value for key, value in os.environ.items() if not key.startswith("ISTHMUS_")}
                own = {**inherited, **environment, "OMP_NUM_THREADS": "1"}
                processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
                if log is not None:
                    log.close()
            codes = [process.wait(timeout=_LIMIT_S) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if any(codes):
            tails = [path.read_text(encoding="utf-8", errors="replace")[-800:] for path in sorted(folder.glob("*.log"))]
            raise InfeasibleError(f"ranks ended with {codes}", "\n".join(tails))


def _measured(
    bench: "WanBench", streams: Sequence[int], transfer: tuple[float, int], exchange: "tuple[list[int], CodecName, int, int]"
) -> "tuple[list[WanRow], list[Measured]]":
    """Everything, in the order in which all ranks do it; what the leader has of it in the end."""
    from isthmus.formats.wan_measurements import WanExchange

    say = _sayer(bench)
    for number, count in enumerate(streams):
        say(f"opening {count} streams a rail")
        with bench.rails(count):
            if number == 0:
                say("round trips")
                bench.round_trips()
            for _ in range(transfer[1]):
                for what in bench.goodput(count, transfer[0]):
                    say(what)
    sizes, codec, warmup, iters = exchange
    with bench.rails(1):
        bench.gather()
        best = bench.agree(bench.best_streams() if bench.leads else 0)
    table: list[Measured] = []
    with bench.rails(best):
        for row in bench.exchange(sizes, codec, warmup, iters):
            say(f"all-reduce of {row.size_bytes} bytes over {best} streams: {row.seconds:.4g} s")
            table.append(row)
    source = f"isthmus bench wan, {codec}"
    done = [
        WanExchange(regions=bench.names, size_bytes=row.size_bytes, seconds=seconds, streams=best, source=source)
        for row in table
        for seconds in (row.seconds, row.in_place_s)
    ]
    return [*bench.found.trips, *bench.found.goodputs, *(done if codec == "none" else [])], table


def _sayer(bench: "WanBench") -> Callable[[str], None]:
    def say(text: str) -> None:
        if bench.leads:
            print(f"bench wan: {text} ...", file=sys.stderr, flush=True)

    return say


def _show(
    bench: "WanBench",
    found: "tuple[list[WanRow], list[Measured]]",
    times: tuple[int, int],
    known: "tuple[Fabric | None, Calibration | None]",
    *,
    as_json: bool,
) -> None:
    from rich.console import Console

    from isthmus.formats.nccl_table import table_foot, table_head, table_row
    from isthmus.formats.wan_measurements import wan_line
    from isthmus.report.wan_table import Driven, exchange_table, link_table, predicted_exchanges, remarks, trip_table

    console, (rows, table), (stated, calibration) = Console(), found, known
    if as_json:
        for row in rows:
            print(wan_line(row))
    else:
        if not console.is_terminal:
            console.width = 110
        console.print(trip_table(rows, stated))
        console.print(link_table(rows, stated))
        places, made_by = bench.places(), f"isthmus bench wan: hierarchical all-reduce over {len(bench.names)} regions"
        sizes = [row.size_bytes for row in table]
        print(table_head("all-reduce", places, sizes, warmup=times[0], iters=times[1], made_by=made_by))
        for row in table:
            print(table_row("all-reduce", len(places), row))
        print(table_foot("all-reduce", len(places), table), flush=True)
        if stated is not None:
            predicted = predicted_exchanges(rows, stated, calibration)
            console.print(exchange_table(predicted, calibrated=calibration is not None))
        states = bench.found.states
        driven = [Driven(each.sender, each.receiver, each.streams, each.congestion, each.window_limit_bytes) for each in states]
        for line in remarks(rows, stated, driven):
            console.print(line, highlight=False)
    if any(row.wrong for row in table):
        raise InfeasibleError("an all-reduce gave wrong sums", "no training over this link before that is understood")
