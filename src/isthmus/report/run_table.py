"""A run under way, as a table that is drawn again and again: one row a region."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from isthmus.units import show_rate, show_seconds

__all__ = ["RegionRow", "run_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """What is known of one region now.

    Attributes:
        name: Of the region.
        state: `starting`, `training`, `ended` or `failed`.
        ranks_alive, ranks: How many of its ranks run.
        restarts: How often it was started again.
        step: Steps taken; None before the first.
        loss: Of the last step.
        step_s: Median of the last steps.
        tokens_per_s: Of the region's ranks together.
        waiting_share: Share of the last steps' time spent waiting for other regions.
        wan_bytes_per_s: What the region sent to others, over the last steps.
        syncs: Outer syncs or proofs so far, with the last one's hash.
        last_hash: First digits; equal in all regions that are in step.
    """

    name: str
    state: str
    ranks_alive: int
    ranks: int
    restarts: int
    step: int | None = None
    loss: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    waiting_share: float | None = None
    wan_bytes_per_s: float | None = None
    syncs: int = 0
    last_hash: str = ""


def run_table(rows: Iterable[RegionRow], title: str) -> Table:
    """The table; numbers that are not known yet are left empty."""
    table = Table(title=title, title_justify="left")
    table.add_column("region")
    table.add_column("state")
    for name in ("ranks", "restarts", "step", "loss", "step time", "tokens/s", "waiting", "WAN out", "syncs"):
        table.add_column(name, justify="right")
    table.add_column("hash")
    for row in rows:
        table.add_row(
            row.name,
            row.state,
            f"{row.ranks_alive}/{row.ranks}",
            str(row.restarts) if row.restarts else "",
            "" if row.step is None else str(row.step),
            "" if row.loss is None else f"{row.loss:.4f}",
            "" if row.step_s is None else show_seconds(row.step_s),
            "" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
            "" if row.waiting_share is None else f"{row.waiting_share:.0%}",
            "" if row.wan_bytes_per_s is None else show_rate(row.wan_bytes_per_s),
            str(row.syncs) if row.syncs else "",
            row.last_hash[:8],
        )
    return table
