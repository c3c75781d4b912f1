"""`isthmus plan`: every strategy priced on a fabric, one chosen, and why."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.cost.collectives_calibration import MeasuredLink, link_changes, read_calibration, read_measured_links
from isthmus.cost.collectives_constants import Constants
from isthmus.documents import read_text
from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, check_fabric, edited, parse_fabric
from isthmus.plan import Assumption, Candidate, Plan, save_plan
from isthmus.planner import choose_plan
from isthmus.planner.rank import TOLERANCE
from isthmus.planner.words import break_even_words, layout_words, money_words, settings, telling
from isthmus.units import FRACTION, quantity, show_bytes, show_rate, show_seconds
from isthmus.workload import Workload, read_workload

if TYPE_CHECKING:
    from isthmus.planner.vary import Varied

EXAMPLES = """Examples:

isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b

isthmus plan examples/shenzhen-shanghai-8.yaml examples/workloads/gpt3-175b-1024.yaml -o plan.yaml

isthmus plan examples/singapore-tokyo.yaml llama-3-70b --json

isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b --runnable -o plan.yaml      # for isthmus run and deploy

isthmus plan examples/singapore-tokyo.yaml llama-3-8b --max-loss 0.5% --all

isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b --vary wan.rate=1..400Gb/s --vary rtt=1..100ms

isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b --report report.html

isthmus plan examples/shenzhen-shanghai.yaml llama-3-8b --vary rtt=1..100ms --report what-if.html
"""


_ORDER = (
    f"Best first: of all within {TOLERANCE:.0%} of the quickest left, those isthmus runs (whole,\n"
    "then in part), of those the least risk, of equals the quickest.\n"
    "vs own: pace against the same layout with the WAN off; it compares no layouts.\n"
    "loss: how much higher it may end, by published or our own runs; a band, no promise."
)


def plan(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    fabric: Annotated[Path, typer.Argument(help="A fabric.yaml.")],
    workload: Annotated[str, typer.Argument(help="A preset, a workload.yaml, or a Hugging Face config.json.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here.")] = None,
    variations: Annotated[
        list[str] | None,
        typer.Option("--vary", help="What if: wan.rate=10..400Gb/s, rtt=1..100ms, regions.NAME.nodes=1..32; may be repeated."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write a page with figures here, complete in itself.")] = None,
    max_loss: Annotated[
        str | None, typer.Option("--max-loss", help="Refuse what may end the loss further off, e.g. 1%; see the loss column.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="From isthmus calibrate: what your own links reach.")
    ] = None,
    runnable: Annotated[
        bool, typer.Option("--runnable", help="Weigh only what isthmus run trains whole; no tensor parallelism, ZeRO 1 ...")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show every strategy, also those that another beats in every way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on stdout.")] = False,
) -> None:
    """Predict every strategy on a fabric and choose one, with reasons.

    The quickest step wins; of the strategies within a few per cent of it, the one that risks the loss least. Each is taken with
    its best settings (bucket size, codec, fragments, delay) on its best layout.
    """
    _check_outputs(output, report, variations, runnable=runnable)
    loss_max, trained = _share(max_loss), read_workload(workload)
    constants = read_calibration(calibration) if calibration else None
    text, measured = read_text(fabric), read_measured_links(calibration).wan if calibration else {}
    stated = parse_fabric(text, str(fabric))
    if measured:
        _check_links(measured, stated, str(calibration))
        text = edited(text, str(fabric), link_changes(measured))
    described = parse_fabric(text, str(fabric))
    if variations:
        varied = _vary((text, str(fabric)), trained, variations, (loss_max, constants), as_json)
        if report is not None:
            chosen = _with_links(choose_plan(described, trained, loss_max, constants), measured, stated)
            _report(chosen, (described, trained), report, (constants, varied))
        return
    chosen = choose_plan(described, trained, loss_max, constants, only_runnable=runnable)
    chosen = _with_links(chosen, measured, stated)
    _warn(fabric)
    if output is not None:
        _write(chosen, output)
    if report is not None:
        _report(chosen, (described, trained), report, (constants, None))
    if as_json:
        print(json.dumps(chosen.model_dump(mode="json"), indent=2))
        return
    _show(chosen, Console(), all_)


def _check_links(measured: dict[str, MeasuredLink], stated: Fabric, where: str) -> None:
    known = ["-".join(link.between) for link in stated.wan]
    either = {*known, *("-".join(link.between[::-1]) for link in stated.wan)}
    for name in measured:
        if name not in either:
            raise InputError(where, f"wan: {stated.name} has no link {name!r}", nearest(name, known))


def _with_links(chosen: Plan, measured: dict[str, MeasuredLink], stated: Fabric) -> Plan:
    """The plan with the links that it was made for among its assumptions, where they are not those of the fabric file."""
    found = list(chosen.assumptions)
    for name, link in measured.items():
        of = next(each for each in stated.wan if name in ("-".join(each.between), "-".join(each.between[::-1])))
        low, high = show_rate(link.rate_low_bytes_per_s), show_rate(link.rate_high_bytes_per_s)
        source = f"the calibration given: {low} to {high} by {link.made_from}; the fabric states {show_rate(of.rate_bytes_per_s)}"
        found.append(Assumption(name=f"rate of {name}", value=link.rate_bytes_per_s, unit="B/s", source=source))
        low, high = show_seconds(link.rtt_low_s), show_seconds(link.rtt_high_s)
        source = f"the calibration given: {low} to {high}; the fabric states {show_seconds(of.rtt_s)}"
        found.append(Assumption(name=f"round trip of {name}", value=link.rtt_s, unit="s", source=source))
    return chosen.model_copy(update={"assumptions": found})


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = quantity(text, FRACTION)
    except ValueError as error:
        raise InputError("--max-loss", str(error)) from None
    if not 0 <= share < 1:
        raise InputError("--max-loss", f"{text!r} is not between 0 and 100%", "e.g. --max-loss 1%")
    return share


def _report(
    chosen: Plan, of: tuple[Fabric, Workload], path: Path, beside: tuple[Constants | None, "Varied | None"]
) -> None:
    from isthmus.report.plan_page import write_plan_page

    write_plan_page(chosen, *of, path, *beside)
    print(f"report written to {path}", file=sys.stderr)


def _vary(
    document: tuple[str, str],
    workload: Workload,
    variations: list[str],
    limits: tuple[float | None, Constants | None],
    as_json: bool,
) -> "Varied":
    """`document`: the fabric's text, and its name in messages."""
    from isthmus.planner.vary import parse_variation, vary
    from isthmus.report.vary_table import vary_document, vary_table

    asked = [parse_variation(each, len(variations) == 1) for each in variations]
    talk = Console(stderr=True)
    with talk.status("") as status:
        varied = vary(*document, workload, asked, limits, lambda done, of: status.update(f"{done} of {of} points"))
    if as_json:
        print(json.dumps(vary_document(varied), indent=2))
        return varied
    console = Console()
    for part in vary_table(varied):
        console.print(part)
    return varied


def _check_outputs(output: Path | None, report: Path | None, variations: list[str] | None, *, runnable: bool) -> None:
    for option, path in (("--output", output), ("--report", report)):
        if path is not None:
            _check_output(option, path)
    if variations and output is not None:
        raise InputError("--vary", "answers with a table, not with one plan", "leave out --output")
    if runnable and (variations or report):
        raise InputError("--runnable", f"is not for {'--vary' if variations else '--report'}", "it chooses the one plan to run")


def _check_output(option: str, output: Path) -> None:
    """Refuse what can never be written before anything is computed."""
    if not output.parent.is_dir():
        raise InputError(option, f"no such folder: {str(output.parent)!r}", "create it, or write elsewhere")
    if output.is_dir():
        name = "plan.yaml" if option == "--output" else "report.html"
        raise InputError(option, f"{str(output)!r} is a folder", f"e.g. {option} {output / name}")
    if output.exists() and not output.is_file():
        raise InputError(option, f"{str(output)!r} is not a file", "--json prints the plan on stdout")


def _write(chosen: Plan, output: Path) -> None:
    try:
        save_plan(chosen, output)
    except OSError as error:
        with suppress(OSError):
            Path(f"{output}.partial").unlink()
        raise InputError("--output", f"cannot write {str(output)!r}: {error.strerror}", "write elsewhere") from None
    print(f"plan written to {output}", file=sys.stderr)


def _warn(fabric: Path) -> None:
    """Say on stderr what cannot work as the fabric is written; the plan is made as if it did."""
    for finding in check_fabric(fabric):
        if finding.severity == "error":
            print(f"warning: {finding.where}: {finding.reason}\n  {finding.rule}; source: {finding.source}", file=sys.stderr)


def _show(chosen: Plan, console: Console, all_: bool) -> None:
    console.print(f"{chosen.workload} on {chosen.fabric}, {chosen.tokens_per_step:,} tokens a step\n")
    winner = Candidate(
        strategy=chosen.strategy, layout=chosen.layout, prediction=chosen.prediction, risk=chosen.risk, loss=chosen.loss
    )
    priced = [winner, *(each for each in chosen.alternatives if each.prediction)]
    shown = priced if all_ else telling(priced)
    console.print(_ranking(shown, console.width >= 100))
    if len(shown) < len(priced):
        console.print(f"[dim]{len(priced) - len(shown)} more are beaten in step and loss by one of these: --all shows them.[/]")
    if chosen.alternatives:
        console.print(f"[dim]{_ORDER}[/]")
    refused = [each for each in chosen.alternatives if each.refused]
    if refused:
        console.print("\n[bold]Refused[/]")
        for bind, names in _by_bind(refused).items():
            console.print(f"  {', '.join(names)}: {bind}")
    console.print(f"\n[bold]Why[/] {chosen.why}")
    console.print(f"[bold]Settings[/] {settings(chosen.strategy)}")
    legend = "degrees; v virtual stages, z ZeRO stage, b micro-batch, rc recomputation, ov tp overlapped"
    console.print(f"[bold]Layout[/] {layout_words(chosen.layout)} ({legend})")
    low, high = chosen.prediction.step_low_s, chosen.prediction.step_high_s
    if low is not None and high is not None:
        told = "as public steps that were not fitted fell, and as links of that kind carry and lose"
        console.print(f"[bold]How sure[/] p10 to p90 of a step: {show_seconds(low)} to {show_seconds(high)}, {told}")
    console.print(f"[bold]How[/] {chosen.prediction.formula}")
    console.print(f"[bold]Binds[/] {chosen.binds}")
    for line in break_even_words(chosen.break_even):
        console.print(f"[bold]Break-even[/] {line}")
    console.print(f"[bold]Loss[/] {chosen.loss.low:+.1%} to {chosen.loss.high:+.1%} ({chosen.loss.basis}): {chosen.loss.source}")
    for line in money_words(chosen.money):
        console.print(f"[bold]Money[/] {line}")
    console.print(f"[bold]Rule of thumb[/] {chosen.rule_of_thumb}\n")
    console.print(_assumptions(chosen))


def _ranking(candidates: list[Candidate], wide: bool) -> Table:
    """One line a strategy; layouts only where the terminal has room for them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for name in ("strategy", *(("layout",) if wide else ())):
        table.add_column(name, no_wrap=True)
    for name in ("step", "exposed", "vs own", "WAN/step", "GPU mem.", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, each in enumerate(candidates):
        prediction = each.prediction
        if prediction is None:
            continue
        table.add_row(
            each.strategy.name,
            *((layout_words(each.layout),) if wide else ()),
            show_seconds(prediction.step_s),
            show_seconds(prediction.exposed_s) if prediction.exposed_s else "0",
            f"{prediction.utilisation:.1%}",
            show_bytes(prediction.wan_bytes_per_step),
            show_bytes(prediction.memory_bytes_per_gpu),
            "exact" if each.loss.basis == "exact" else f"<= {each.loss.high:+.1%}",
            style="bold green" if index == 0 else None,
        )
    return table


def _by_bind(refused: list[Candidate]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for each in refused:
        groups.setdefault(each.refused or "", []).append(each.strategy.name)
    return groups


def _assumptions(chosen: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Assumptions", title_justify="left")
    table.add_column("what", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold", style="dim")
    for each in chosen.assumptions:
        table.add_row(each.name, _value(each.value, each.unit), each.source)
    return table


def _value(value: float, unit: str) -> str:
    match unit:
        case "s":
            return show_seconds(value)
        case "B":
            return show_bytes(value)
        case "B/s":
            return f"{show_bytes(value)}/s"
        case "FLOP/s":
            return f"{value / 1e12:.4g} TFLOP/s"
        case _:
            number = f"{value:,.0f}" if value == int(value) and value >= 1000 else f"{value:.3g}"
            return f"{number} {unit}".strip()
