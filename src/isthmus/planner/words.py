"""Plans in words, for the terminal and the page alike: numbers with their nouns, settings, break-even points."""

from collections.abc import Sequence

from isthmus.plan import BreakEven, Candidate, Layout, Money, Strategy
from isthmus.units import show_rate, show_seconds

__all__ = ["amount", "break_even_words", "counted", "layout_words", "money_words", "settings", "telling"]


def counted(number: int, one: str, many: str = "") -> str:
    """`1 ring`, `8 rings`; `many` where the plural is not `one` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def settings(strategy: Strategy) -> str:
    """What `strategy` is run with, beyond its name."""
    parts = [f"{counted(strategy.streams, 'TCP stream')} a rail"]
    if strategy.kind in ("flat", "hierarchical", "sharded"):
        parts.append(f"buckets of {strategy.bucket_bytes / 2**20:g} MiB")
    if strategy.codec == "powersgd":
        parts.append(f"rank {strategy.codec_rank}")
    if strategy.codec in ("topk", "topk-int4"):
        parts.append(f"{strategy.codec_density:.0%} of the elements")
    if strategy.kind == "local-steps":
        outer = strategy.outer
        nesterov = " (Nesterov)" if outer.nesterov else ""
        parts += [
            f"{strategy.codec} deltas every {counted(strategy.inner_steps, 'step')}",
            counted(strategy.fragments, "fragment"),
            f"applied {counted(strategy.delay_steps, 'step')} late" if strategy.delay_steps else "blocking",
            f"outer SGD lr {outer.lr:g}, momentum {outer.momentum:g}{nesterov}, mixing {strategy.mixing:g}",
        ]
    if strategy.kind == "pipeline":
        parts.append(f"{counted(strategy.micro_batches, 'micro-batch', 'micro-batches')}, {strategy.codec} activations")
    if strategy.kind == "hierarchical" and strategy.codec != "none":
        parts.append(f"{strategy.codec} with error feedback")
    return "; ".join(parts)


def break_even_words(points: Sequence[BreakEven]) -> list[str]:
    """`below 76.2 Gb/s prefer hierarchical-int8 to hierarchical-bf16`; one line a point."""
    return [_point(point) for point in points]


def _point(point: BreakEven) -> str:
    value = show_rate(point.value) if point.unit == "B/s" else show_seconds(point.value)
    return f"{point.quantity}: below {value} prefer {point.below}, above it {point.above}"


def layout_words(layout: Layout) -> str:
    """Degrees above 1: `dp16 tp2`; virtual stages; then ZeRO stage, sequences of a micro-batch, recomputation, tp overlapped."""
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "v": layout.virtual_stages, "cp": layout.cp, "ep": layout.ep}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    words += [f"z{layout.zero}"] * (layout.zero > 0) + [f"b{layout.micro_batch}"] + ["rc"] * layout.recompute
    words += ["ov"] * layout.tp_overlap
    return " ".join(words)


def amount(value: float, currency: str) -> str:
    """`1,234,000 USD`: four figures, thousands set apart."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f} {currency}" if rounded >= 1000 else f"{rounded:,.4g} {currency}"


def money_words(money: Money | None) -> list[str]:
    """The bill in lines; none where the fabric states no prices."""
    if money is None:
        return []
    dated = f", prices of {money.as_of}" if money.as_of else ""
    lines = [
        f"{amount(money.per_month, money.currency)} a month, {amount(money.per_trillion_tokens, money.currency)} per trillion "
        f"tokens without a stop{dated}; left out: {', '.join(money.left_out)}"
    ]
    lines += [f"{row.name}: {amount(row.per_month, money.currency)} a month = {row.how}" for row in money.rows]
    if money.power_w is not None:
        racks = f" in {counted(money.racks, 'rack')}" if money.racks is not None else ""
        lines.append(f"nodes draw up to {money.power_w / 1e3:,.1f} kW{racks}")
    return lines


def telling(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in step and loss both, the first of each kind, and the plain ones; in the order given."""
    kinds: set[str] = set()
    kept: list[Candidate] = []
    for index, each in enumerate(candidates):
        plain = each.strategy.codec == "none" and each.strategy.kind != "local-steps"
        if index == 0 or plain or each.strategy.kind not in kinds or not _beaten(each, candidates):
            kept.append(each)
        kinds.add(each.strategy.kind)
    return kept


def _beaten(each: Candidate, others: Sequence[Candidate]) -> bool:
    assert each.prediction is not None
    step = each.prediction.step_s
    return any(
        other.prediction is not None
        and other is not each
        and other.prediction.step_s <= step * 1.001
        and other.loss.high <= each.loss.high
        and (other.prediction.step_s < step or other.loss.high < each.loss.high)
        for other in others
    )
