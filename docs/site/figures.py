"""The figures of docs/concepts, each drawn from the formulas that the program itself uses; `make figures` writes them anew.

A test compares the files with what this draws, so a figure cannot show what the program no longer says. Colours are classes:
on the site the page's style sheet gives them, elsewhere the style in the file.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isthmus.cost.collectives_group import ranks_of, region_group
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.link import LinkQuestion, carried_ways
from isthmus.fabric import levels, parse_fabric, read_fabric
from isthmus.planner import choose_plan
from isthmus.report.svg import Drawing, Scale, Svg, drawing, label, line, rectangle, spread, tag
from isthmus.units import show_bytes, show_rate, show_seconds
from isthmus.workload import read_workload

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "concepts" / "figures"
STYLE = """<style>
.ink{fill:#1d2733}.muted{fill:#5b6774}.strong{font-weight:600}text{font:13px sans-serif}
.grid{stroke:#d5dbe1}.axis{stroke:#5b6774}.fill{fill:#e8eef4}.dash{stroke-dasharray:5 4}
.c1{stroke:#1f5fa8}.c2{stroke:#b3470f}.c3{stroke:#2b7a4b}.c4{stroke:#7a3f98}.c5{stroke:#8a6d00}
.b1{fill:#1f5fa8}.b2{fill:#b3470f}.b3{fill:#2b7a4b}.b4{fill:#7a3f98}.b5{fill:#8a6d00}.band{opacity:.18}
path{fill:none;stroke-width:2}path.b1,path.b2{stroke:none}
</style>"""
WIDTH = 720.0


def figures() -> dict[str, str]:
    """File name -> what it should hold."""
    drawers: tuple[Callable[[], Svg], ...] = (fabric_levels, all_reduce, line_rates, step_over_rate, timelines, rounds, bands)
    return {f"{each.__name__.replace('_', '-')}.svg": _whole(each()) for each in drawers}


def _whole(drawn: Svg) -> str:
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace("<title", STYLE + "<title", 1) + "\n"


def _path(points: Sequence[tuple[float, float]], class_: str) -> Svg:
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=class_)


def _log_axes(x: Scale, y: Scale, marks: tuple[Sequence[tuple[float, str]], Sequence[tuple[float, str]]]) -> list[Svg]:
    shapes: list[Svg] = []
    for value, text in marks[1]:
        shapes += [line(x.start, y(value), x.end, y(value), "grid"), label(x.start - 8, y(value) + 4, text, "muted", "end")]
    for value, text in marks[0]:
        shapes += [line(x(value), y.end, x(value), y.start, "grid"), label(x(value), y.start + 20, text, "muted", "middle")]
    return shapes


def fabric_levels() -> Svg:
    """What a GPU's share of each level is, and how long a hop takes."""
    place = read_fabric(ROOT / "examples/shenzhen-shanghai-8.yaml")
    gpus = {"nvlink": 1, "node": 8, "wan": ranks_of(region_group(place, place.regions[0].name))}
    names = {"nvlink": "NVLink, in a node", "node": "InfiniBand, in a region", "wan": "WAN, between regions"}
    x = Scale(0.1e9, 1000e9, 190, 520, log=True)
    shapes = [label(0, 18, "bytes/s of one GPU, when all send (logarithmic)", "muted"), label(600, 18, "a hop", "muted")]
    for row, level in enumerate(levels(place)):
        share, top = level.bandwidth_bytes_per_s / gpus[level.name], 34 + 44 * row
        shapes += [
            label(0, top + 20, names[level.name], "ink strong"),
            rectangle((190, top, x(share) - 190, 28), f"b{row + 1}", 3),
            label(x(share) + 8, top + 19, f"{show_bytes(share)}/s", "ink"),
            label(600, top + 19, show_seconds(level.latency_s), "ink"),
        ]
    about = Drawing(
        "levels", "Levels of a fabric", "A GPU's share of NVLink, InfiniBand and the WAN, and the time of a hop of each."
    )
    return drawing(about, (WIDTH, 34 + 44 * 3), *shapes)


def all_reduce() -> Svg:
    """Bus bandwidth of an all-reduce by size: one node, four nodes."""
    lab, region = read_fabric(ROOT / "examples/one-node.yaml"), read_fabric(ROOT / "examples/shenzhen-shanghai-8.yaml")
    sizes = [2.0 ** (power / 2) for power in range(28, 67)]
    x, y = Scale(sizes[0], sizes[-1], 80, 560, log=True), Scale(0.0, 600e9, 250, 20)
    ticks_x = [(2.0**power, show_bytes(2.0**power)) for power in range(16, 34, 4)]
    ticks_y = [(value * 1e9, f"{value} GB/s") for value in (0, 200, 400, 600)]
    shapes = _log_axes(x, y, (ticks_x, ticks_y))
    for number, (place, words) in enumerate(((lab, "8 GPUs of a node"), (region, "32 GPUs of 4 nodes")), 1):
        group = region_group(place, place.regions[0].name)
        factor = 2 * (ranks_of(group) - 1) / ranks_of(group)
        times = [collective_time("all-reduce", size, group) for size in sizes]
        pairs = list(zip(sizes, times, strict=True))
        low = [(x(size), y(factor * size / each.high_s)) for size, each in pairs]
        high = [(x(size), y(min(factor * size / each.low_s, 600e9))) for size, each in pairs]
        shapes.append(_path([*low, *reversed(high)], f"b{number} band"))
        shapes.append(_path([(x(size), y(factor * size / each.seconds)) for size, each in pairs], f"c{number}"))
        shapes.append(label(568, y(factor * sizes[-1] / times[-1].seconds) + 4, words, f"b{number} strong"))
    shapes += [label(80, 12, "bus bandwidth", "muted"), label(560, 285, "size of the buffer", "muted", "end")]
    about = Drawing(
        "allreduce", "All-reduce by size", "Predicted bus bandwidth with its band, p10 to p90, for one node and for four."
    )
    return drawing(about, (WIDTH, 292), *shapes)


def line_rates() -> Svg:
    """What TCP carries over a 100 Gb/s line as the round trip grows."""
    trips = [10 ** (power / 10) for power in range(-30, -6)]
    x, y = Scale(trips[0], trips[-1], 80, 500, log=True), Scale(10e6, 12.5e9, 250, 20, log=True)
    ticks_x = [(value, show_seconds(value)) for value in (1e-3, 1e-2, 1e-1)]
    ticks_y = [(value / 8, show_rate(value / 8)) for value in (1e8, 1e9, 1e10, 1e11)]
    shapes = _log_axes(x, y, (ticks_x, ticks_y))
    asked = LinkQuestion(rate_bytes_per_s=12.5e9, rtt_s=0.01, loss=1e-6, streams=16, control="bbr")
    words = ("one stream, as Linux comes", "16 streams, as they come", "16 streams, windows set")
    for number, name in enumerate(words):
        rates = [carried_ways(replace(asked, rtt_s=trip))[number].rate_bytes_per_s for trip in trips]
        shapes.append(_path([(x(trip), y(rate)) for trip, rate in zip(trips, rates, strict=True)], f"c{number + 1}"))
        shapes.append(label(508, y(rates[-1]) + 4, name, f"b{number + 1} strong"))
    shapes.append(label(500, 285, "round trip", "muted", "end"))
    about = Drawing("linerates", "TCP over a 100 Gb/s line", "Goodput against the round trip, loss of one in a million packets.")
    return drawing(about, (WIDTH, 292), *shapes)


def step_over_rate() -> Svg:
    """Step time of four ways of joining two regions, by the rate of the line between them."""
    text = (ROOT / "examples/shenzhen-shanghai.yaml").read_text(encoding="utf-8")
    workload = read_workload("llama-3-8b")
    rates = (1, 10, 40, 100, 400)
    names = ("flat", "hierarchical", "hierarchical-int8", "local-20")
    found: dict[str, list[float]] = {name: [] for name in names}
    for rate in rates:
        plan = choose_plan(parse_fabric(text.replace("rate: 100 Gb/s, rtt", f"rate: {rate} Gb/s, rtt"), "figure"), workload)
        steps = {each.strategy.name: each.prediction.step_s for each in plan.alternatives if each.prediction}
        steps[plan.strategy.name] = plan.prediction.step_s
        for name in names:
            found[name].append(steps[name])
    x, y = Scale(1, 400, 80, 540, log=True), Scale(10, 1000, 250, 20, log=True)
    ticks_x = [(rate, f"{rate} Gb/s") for rate in (1, 10, 100, 400)]
    shapes = _log_axes(x, y, (ticks_x, [(value, f"{value} s") for value in (10, 30, 100, 300, 1000)]))
    for number, name in enumerate(names, 1):
        shapes.append(_path([(x(rate), y(step)) for rate, step in zip(rates, found[name], strict=True)], f"c{number}"))
    ends = spread([y(found[name][-1]) for name in names], 17, 20, 250)
    shapes += [
        label(548, at + 4, name, f"b{number} strong") for number, (name, at) in enumerate(zip(names, ends, strict=True), 1)
    ]
    shapes += [label(80, 12, "step", "muted"), label(540, 285, "rate of the line", "muted", "end")]
    about = Drawing(
        "rates", "Step time by the rate of the line", "Predicted steps of llama-3-8b over two regions, four ways to join."
    )
    return drawing(about, (WIDTH, 292), *shapes)


def timelines() -> Svg:
    """How compute and the WAN take turns under four ways of joining, drawn to no scale."""
    rows = (
        (
            "every step, flat",
            [(0, 80, "1"), (130, 80, "1"), (260, 80, "1"), (390, 80, "1")],
            [(60, 70), (190, 70), (320, 70), (450, 70)],
        ),
        ("every step, coded", [(k * 92, 80, "1") for k in range(5)], [(k * 92 + 60, 28) for k in range(5)]),
        (
            "local steps",
            [(k * 82, 80, "1") for k in range(3)] + [(300 + k * 82, 80, "1") for k in range(3)],
            [(246, 50), (546, 14)],
        ),
        ("local steps, delayed", [(k * 82, 80, "1") for k in range(7)], [(246, 110), (492, 78)]),
    )
    shapes = []
    for number, (name, steps, crossings) in enumerate(rows):
        top = 14 + 62 * number
        shapes += [label(0, top + 16, name, "ink strong"), label(0, top + 36, "WAN", "muted")]
        for left, width, _ in steps:
            shapes.append(rectangle((150 + left, top, min(width, 560 - left), 22), "b1", 2))
        for left, width in crossings:
            shapes.append(rectangle((150 + left, top + 26, min(width, 560 - left), 12), "b2", 2))
    about = Drawing(
        "timelines", "Who waits for whom", "Compute (above) and the WAN (below) under four ways of joining regions; no scale."
    )
    return drawing(about, (WIDTH, 14 + 62 * 4), *shapes)


def rounds() -> Svg:
    """A region is lost inside a round, the others repeat it, the region comes back."""
    lanes = ("shenzhen", "shanghai", "beijing")
    shapes = [
        label(150, 16, "generation 1", "muted"),
        label(330, 16, "generation 2", "muted"),
        label(560, 16, "generation 3", "muted"),
    ]
    for number, name in enumerate(lanes):
        y = 34 + 44 * number
        shapes.append(label(0, y + 18, name, "ink strong"))
        if name == "beijing":
            shapes += [rectangle((150, y, 110, 26), "b1", 3), rectangle((560, y, 150, 26), "b1", 3)]
            shapes += [line(260, y + 13, 560, y + 13, "axis dash"), label(275, y + 8, "killed inside round 12", "muted")]
            shapes.append(label(430, y + 30, "fetches the outer state", "muted"))
        else:
            shapes += [
                rectangle((150, y, 160, 26), "b1", 3),
                rectangle((330, y, 210, 26), "b1", 3),
                rectangle((560, y, 150, 26), "b1", 3),
            ]
    for x, text in ((205, "round 11"), (255, "12?"), (345, "12"), (440, "13"), (600, "14"), (680, "15")):
        shapes += [
            line(x, 30, x, 34 + 44 * (2 if text in ("12", "13") else 3) - 8, "axis dash"),
            label(x, 34 + 44 * 3 + 8, text, "muted", "middle"),
        ]
    about = Drawing(
        "rounds",
        "A region is lost and comes back",
        "Round 12 is repeated without the lost region, which is let in after round 13.",
    )
    return drawing(about, (WIDTH, 34 + 44 * 3 + 16), *shapes)


def bands() -> Svg:
    """How wide the band of an all-reduce over four nodes is, by size."""
    place = read_fabric(ROOT / "examples/shenzhen-shanghai-8.yaml")
    group = region_group(place, place.regions[0].name)
    x = Scale(0.5, 2.0, 150, 640, log=True)
    shapes = [label(x(1), 16, "prediction", "muted", "middle")]
    for row, size in enumerate((1e6, 16e6, 256e6, 4e9)):
        each, top = collective_time("all-reduce", size, group), 30 + 40 * row
        low, high = each.low_s / each.seconds, each.high_s / each.seconds
        shapes += [
            label(0, top + 16, f"all-reduce of {show_bytes(size)}", "ink strong"),
            rectangle((x(low), top + 2, x(high) - x(low), 20), "b1 band", 3),
            label(x(low) - 6, top + 16, f"{low - 1:+.0%}", "muted", "end"),
            label(x(high) + 6, top + 16, f"{high - 1:+.0%}", "muted"),
        ]
    shapes.insert(0, line(x(1), 22, x(1), 30 + 40 * 4, "axis"))
    about = Drawing(
        "bands", "Bands", "p10 to p90 of an all-reduce of 32 H100 in four nodes, as a share of the prediction, by size."
    )
    return drawing(about, (WIDTH, 34 + 40 * 4), *shapes)


def main() -> None:
    """Write all figures."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, text in figures().items():
        (PLACE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
