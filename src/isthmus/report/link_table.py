"""The answer of `isthmus link` as tables for people."""

from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.cost.link import LinkAnswer, LinkQuestion
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = ["show_link"]


def show_link(asked: LinkQuestion, answer: LinkAnswer, console: Console | None = None) -> None:
    """Print `answer`; the fullest way of using the link stands out."""
    console = console or Console()
    console.print(
        f"{show_rate(asked.rate_bytes_per_s)}, RTT {show_seconds(asked.rtt_s)}, loss {asked.loss:g}: "
        f"[bold]{show_bytes(answer.product_bytes)}[/] must be in flight (rate x RTT)\n",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("way")
    for name in ("carries", "of link"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{show_bytes(asked.message_bytes)} takes", justify="right", no_wrap=True)
    table.add_column("bound by")
    best = max(each.rate_bytes_per_s for each in answer.carried)
    for each in answer.carried:
        table.add_row(
            each.what,
            show_rate(each.rate_bytes_per_s),
            f"{each.rate_bytes_per_s / asked.rate_bytes_per_s:.1%}",
            show_seconds(each.message_s),
            each.bind,
            style="bold green" if each.rate_bytes_per_s == best else None,
        )
    console.print(table)
    for source in dict.fromkeys(each.source for each in answer.carried):
        console.print(f"[dim]Source: {source}[/]", highlight=False)
    console.print(f"\nOne new stream reaches the rate after {show_seconds(answer.slow_start_s)} of slow start.", highlight=False)
    relay = show_rate(answer.host_relay_bytes_per_s)
    console.print(f"Through host memory (sockets, TLS; PCIe 5.0 x16, DDR5) at most {relay} pass a socket.", highlight=False)
    console.print(f"One {asked.control} stream fills the link at loss up to {answer.loss_most:.2g}.\n", highlight=False)
    console.print(_settings(answer))
    ecn = answer.ecn
    console.print(
        f"ECN: Kmin {show_bytes(ecn.kmin_bytes)}, Kmax {show_bytes(ecn.kmax_bytes)}, Pmax {ecn.pmax:g} ({ecn.source})",
        highlight=False,
    )
    loop = answer.dcqcn
    console.print(
        f"DCQCN, 8 flows from line rate: {loop.verdict}; {loop.utilisation:.0%} of the link, queue up to "
        f"{show_bytes(loop.queue_bytes_max)} (fluid model, Zhu et al., SIGCOMM 2015)",
        highlight=False,
    )
    if answer.headroom_bytes is not None:
        console.print(
            f"PFC headroom a port and priority: {show_bytes(answer.headroom_bytes)} "
            f"({show_bytes(answer.headroom_wire_bytes)} on the wire alone; SONiC buffer_headroom_mellanox.lua)",
            highlight=False,
        )
    if answer.impossible:
        console.print("\n[bold]Impossible[/]")
        for each in answer.impossible:
            console.print(f"  {each}", highlight=False)


def _settings(answer: LinkAnswer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="What to set", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("value", overflow="fold")
    table.add_column("because", overflow="fold", style="dim")
    for each in answer.settings:
        table.add_row(each.name, each.value, each.reason)
    return table
