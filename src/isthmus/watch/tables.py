"""A run as its exporters tell it, for a terminal: regions, and links against what was planned."""

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from isthmus.units import show_rate, show_seconds
from isthmus.watch.scraped import LinkNow, RegionNow

__all__ = ["watch_tables"]

BELOW_PLAN, STRAGGLING = 0.7, 1.3  # as in the alerts of deploy.observability.rules


def watch_tables(
    regions: Sequence[RegionNow],
    links: Sequence[LinkNow],
    *,
    silent: Sequence[str] = (),
    step_s: float | None = None,
    goodput_bytes_per_s: Mapping[tuple[str, str], float] | None = None,
) -> Group:
    """Both tables and a line of remarks.

    Args:
        regions, links: Now.
        silent: Exporters that did not answer, with why.
        step_s: Planned; None or 0 where nothing was.
        goodput_bytes_per_s: Planned, by (region, peer).
    """
    parts = [_regions(regions, step_s or None), _links(links, goodput_bytes_per_s or {})] if regions else []
    return Group(*parts, *[Text(remark, style="yellow") for remark in remarks(regions, links, silent, goodput_bytes_per_s or {})])


def remarks(
    regions: Sequence[RegionNow], links: Sequence[LinkNow], silent: Sequence[str], planned: Mapping[tuple[str, str], float]
) -> list[str]:
    """What somebody should look at."""
    found = [f"no answer from {each}" for each in silent[:8]]
    if len(silent) > 8:
        found.append(f"and from {len(silent) - 8} more")
    for link in links:
        plan, now = planned.get((link.region, link.peer)), link.goodput_bytes_per_s
        if plan and now is not None and now < BELOW_PLAN * plan and link.busy_share > 0.05:
            found.append(f"{link.region} to {link.peer} carries {now / plan:.0%} of what was planned while it sends")
    own = {region.region: region.own_s for region in regions if region.own_s}
    if len(own) > 1:
        fastest, slowest = min(own, key=lambda name: own[name] or 0.0), max(own, key=lambda name: own[name] or 0.0)
        ratio = (own[slowest] or 0.0) / (own[fastest] or 1.0)
        if ratio > STRAGGLING:
            found.append(f"{slowest} computes {ratio:.1f} x as long as {fastest}")
    most = max((region.together for region in regions), default=0)
    found += [f"{each.region} trains with {each.together} of {most} regions" for each in regions if each.together < most]
    return found


def _regions(regions: Sequence[RegionNow], planned_s: float | None) -> Table:
    table = Table(title="regions", title_justify="left")
    table.add_column("region")
    names = ["ranks", "step", "step time", *(["of plan"] if planned_s else []), "own time", "waiting", "tokens/s", "loss"]
    for name in [*names, "syncs", "generation", "thrown away"]:
        table.add_column(name, justify="right")
    for row in regions:
        of_plan = [f"{row.step_s / planned_s:.0%}" if row.step_s else ""] if planned_s else []
        table.add_row(
            row.region,
            str(row.answering),
            f"{row.step:,}",
            show_seconds(row.step_s) if row.step_s is not None else "",
            *of_plan,
            show_seconds(row.own_s) if row.own_s is not None else "",
            f"{row.waiting_share:.0%}" if row.waiting_share is not None else "",
            f"{row.tokens_per_s:,.0f}",
            f"{row.loss:.3f}" if row.loss is not None else "",
            str(row.syncs),
            f"{row.generation} of {row.together}",
            f"{row.discarded_tokens:,}" if row.discarded_tokens else "",
        )
    return table


def _links(links: Sequence[LinkNow], planned: Mapping[tuple[str, str], float]) -> Table:
    table = Table(title="links", title_justify="left")
    table.add_column("from")
    table.add_column("to")
    for name in ("sent", "while sending", *(["of plan"] if planned else []), "busy", "RTT", "sent again"):
        table.add_column(name, justify="right")
    for row in links:
        plan, now = planned.get((row.region, row.peer)), row.goodput_bytes_per_s
        of_plan = [f"{now / plan:.0%}" if plan and now is not None else ""] if planned else []
        table.add_row(
            row.region,
            row.peer,
            show_rate(row.sent_bytes_per_s),
            show_rate(now) if now is not None else "",
            *of_plan,
            f"{row.busy_share:.0%}",
            show_seconds(row.rtt_s),
            f"{row.resent_share:.2%}",
        )
    return table
