"""The results of `isthmus try` as a table for the terminal."""

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from isthmus.report.results import Tried, read_results
from isthmus.report.verdict import TOLERANCE, best_of, judge
from isthmus.units import show_bytes, show_seconds

__all__ = ["trial_table"]


def trial_table(results: dict[str, Any]) -> Table:
    """One row a strategy, the best marked `*`, with the verdict underneath.

    Args:
        results: The document that `isthmus try` writes as `results.json`.

    Raises:
        InputError: The document lacks a value that the table shows.
    """
    read = read_results(results)
    best, verdict = best_of(read.strategies), judge(read.strategies)
    # 80 columns hold five figures and a name of 19 characters only without padding and edges.
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        title=_plain(read.fabric.name),
        title_justify="left",
        caption_justify="left",
        caption=Text(_printable(verdict.line), style="bold yellow" if verdict.warning else "bold"),
    )
    table.add_column("\nstrategy", overflow="fold")
    for heading in (
        "tokens\nper s",
        "utili-\nsation",
        "WAN per\nstep",
        _loss_heading(read.strategies),
        "predict\nstep",
        "measure\nstep",
        "\nratio",
        "re-\nplicas",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, one in enumerate(read.strategies):
        table.add_row(*_cells(one, index == best), style="bold" if index == best else "")
    return table


def _cells(one: Tried, best: bool) -> list[Text]:
    measured = one.measured
    replicas = {True: "equal", False: "DIFFER", None: "-"}[one.replicas_equal]
    return [
        _plain(f"{'*' if best else ' '}{one.name}"),
        Text(f"{measured.tokens_per_s:,.0f}"),
        Text("-" if measured.utilisation is None else f"{measured.utilisation:.1%}"),
        Text(show_bytes(measured.wan_bytes_per_step)),
        Text("-" if one.loss_at_equal_tokens is None else f"{one.loss_at_equal_tokens:.3f}"),
        Text(show_seconds(one.predicted.step_s)),
        Text(show_seconds(measured.step_s)),
        Text(f"{one.ratio:.2f}", style="red" if abs(one.ratio - 1) > TOLERANCE else "green"),
        Text(replicas, style="bold red" if one.replicas_equal is False else ""),
    ]


def _loss_heading(tried: list[Tried]) -> str:
    """Says at how many tokens the losses are compared, where all strategies agree on it."""
    counts = {one.equal_tokens for one in tried if one.equal_tokens is not None}
    if len(counts) != 1:
        return "loss at\nequal"
    tokens = counts.pop()
    shown = f"{tokens / 1e6:.3g}M" if tokens >= 999_500 else f"{tokens / 1e3:.3g}k" if tokens >= 1000 else f"{tokens:.0f}"
    return f"loss at\n{shown} t"


def _plain(text: str) -> Text:
    """Text from outside: no markup, no control characters."""
    return Text(_printable(text))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
