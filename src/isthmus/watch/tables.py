"""A run as its exporters tell it, for a terminal: regions, and links against what was planned."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from isthmus.units import show_rate, show_seconds
from isthmus.watch.scraped import LinkNow, RegionNow

__all__ = ["watch_tables"]

_Figure = tuple[str, Callable[[RegionNow], str]]

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


def _table(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    """Narrow enough for 80 columns; figures are never cut."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold", vertical="bottom")
    for name in figures:
        width = max(map(len, name.split()))
        table.add_column("\n".join(name.split()), justify="right", no_wrap=True, min_width=width, vertical="bottom")
    return table


def _regions(regions: Sequence[RegionNow], planned_s: float | None) -> Table:
    shown: list[_Figure] = [
        ("ranks", lambda row: str(row.answering)),
        ("step", lambda row: f"{row.step:,}"),
        ("time", lambda row: show_seconds(row.step_s) if row.step_s is not None else ""),
    ]
    if planned_s:
        shown.append(("of plan", lambda row: f"{row.step_s / planned_s:.0%}" if row.step_s else ""))
    also: list[_Figure] = [
        ("own time", lambda row: show_seconds(row.own_s) if row.own_s is not None else ""),
        ("waiting", lambda row: f"{row.waiting_share:.0%}" if row.waiting_share is not None else ""),
        ("tokens/s", lambda row: f"{row.tokens_per_s:,.0f}"),
        ("loss", lambda row: f"{row.loss:.3f}" if row.loss is not None else ""),
    ]
    shown += also
    if any(row.syncs for row in regions):
        shown.append(("syncs", lambda row: str(row.syncs)))
    if any(row.discarded_tokens for row in regions):
        shown.append(("tokens lost", lambda row: f"{row.discarded_tokens:,}" if row.discarded_tokens else ""))
    table = _table("regions", ["region"], [name for name, _ in shown])
    for row in regions:
        table.add_row(row.region, *[text(row) for _, text in shown])
    return table


def _links(links: Sequence[LinkNow], planned: Mapping[tuple[str, str], float]) -> Table:
    figures = ["sent", "while sending", *(["of plan"] if planned else []), "busy", "RTT", "sent again"]
    table = _table("links", ["from", "to"], figures)
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
