"""C6: predicted against measured step time in the wind tunnel, every strategy on three fabrics that differ in kind.

    make prediction                                        # whatever is not measured yet; about 40 minutes in all
    make prediction FABRIC=carrier STRATEGY=flat,int4      # these cells once more, each in a trial of about two minutes
    make prediction CHUNK=6                                # all strategies of a fabric in one trial: a quarter of an hour in all
    make prediction SHOW=1                                 # the table of what there is

Trials are kept in build/prediction.json as each ends, so the benchmark can be stopped and taken up again. Compute of the same
ranks drifts by a tenth and more within minutes: a cell is the median of all its trials that count.
Remove the file when predictions have changed.
Each fabric is examples/shenzhen-shanghai.yaml with another line between its regions, tried as `isthmus try` does it: compute
is measured with the WAN off, the predictions are written, and only then the strategies run; a step time is the median of three
on-blocks. What counts is predicted / measured; a cell whose compute drifted meanwhile does not. The ratios that decide how a
strategy fares (transfer / compute and RTT / compute) must span 5x and 3x over the fabrics, or the benchmark says that it
proves nothing.

Exit 0 when every cell is measured and within 10%, else 1.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.trial import TrialRequest, run_trial

HERE = Path(__file__).resolve().parents[1]
LIMIT, TRANSFER_SPAN, RTT_SPAN = 0.10, 5.0, 3.0
STEADY = 0.15
"""How far the same ranks' compute may drift between calibration and run for a cell to say anything of the prediction."""
STRATEGIES = ("flat", "hierarchical", "int8", "int4", "local-steps", "local-delayed")


@dataclass(frozen=True, slots=True)
class Line:
    """What joins the two regions."""

    rate: str
    rtt: str


FABRICS = {
    "metro": Line("400 Gb/s", "3 ms"),
    "carrier": Line("100 Gb/s", "18 ms"),
    "subsea": Line("50 Gb/s", "58 ms"),
}


def fabric_file(name: str, folder: Path) -> Path:
    """The example with the line of `name`."""
    text = (HERE / "examples" / "shenzhen-shanghai.yaml").read_text(encoding="utf-8")
    line = FABRICS[name]
    changed = text.replace("rate: 100 Gb/s, rtt: 18 ms", f"rate: {line.rate}, rtt: {line.rtt}")
    assert changed != text or name == "carrier", "the example's wan line is written otherwise now"
    path = folder / f"{name}.yaml"
    path.write_text(changed, encoding="utf-8")
    return path


Cell = dict[str, Any]
"""What one trial found of one strategy on one fabric."""


def tried(name: str, strategies: tuple[str, ...], options: argparse.Namespace) -> list[Cell]:
    """One trial of `strategies` on the fabric called `name`."""
    folder = options.output / name
    folder.mkdir(parents=True, exist_ok=True)
    request = TrialRequest(
        fabric=fabric_file(name, options.output),
        workload=str(HERE / "examples" / "workloads" / "llama-3-8b-256k.yaml"),
        strategies=strategies,
        minutes=options.minutes * len(strategies),
        rate=None,
        rtt=None,
        script=None,
        faults=(),
        output=folder / "-".join(strategies),
        seed=options.seed,
    )
    results = run_trial(request)
    ratios = results["tunnel"]["similitude"]
    return [
        {
            "fabric": name,
            "strategy": each["name"],
            "predicted_s": each["predicted"]["step_s"],
            "measured_s": each["measured"]["step_s"],
            "ratio": each["ratio"],
            "compute_s": results["compute_s"],
            "compute_again_s": median(each["measured"]["off_step_s_repeats"]),
            "transfer_over_compute": ratios["transfer_over_compute"]["achieved"],
            "rtt_over_compute": ratios["rtt_over_compute"]["achieved"],
            "made": results["made"],
            "load": os.getloadavg()[0],
        }
        for each in results["strategies"]
        if each["measured"]
    ]


def steady(each: Cell) -> bool:
    """Whether the machine did nothing else: compute beside the run took what it took before the prediction, and no less with the
    WAN on than with it off.
    """
    again = each["compute_again_s"]
    return abs(again / each["compute_s"] - 1) <= STEADY and each["measured_s"] >= again * 0.95


def kept(path: Path) -> list[Cell]:
    """Cells of earlier calls."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def keep(path: Path, cells: list[Cell], fresh: list[Cell]) -> list[Cell]:
    """`fresh` beside what there is, written at once."""
    merged = [*cells, *fresh]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(merged, indent=1), encoding="utf-8")
    partial.replace(path)
    return merged


def medians(trials: list[Cell]) -> list[Cell]:
    """One cell of each fabric and strategy, of its trials that count: the one of median ratio (of two, the worse), and the
    ratios of all; where none counts, the last.
    """
    found: list[Cell] = []
    for name in dict.fromkeys((each["fabric"], each["strategy"]) for each in trials):
        own = [each for each in trials if (each["fabric"], each["strategy"]) == name]
        counting = sorted((each for each in own if steady(each)), key=lambda each: each["ratio"]) or own[-1:]
        low, high = counting[(len(counting) - 1) // 2], counting[len(counting) // 2]
        typical = max(low, high, key=lambda each: abs(each["ratio"] - 1))
        found.append(typical | {"ratios": [round(each["ratio"], 3) for each in counting]})
    return found


def chunks(options: argparse.Namespace, cells: list[Cell]) -> list[tuple[str, tuple[str, ...]]]:
    """(fabric, strategies) of every trial to run: those named, or whatever is not there yet."""
    there = {(each["fabric"], each["strategy"]) for each in cells if steady(each)}
    named = bool(options.fabric or options.strategy)
    found: list[tuple[str, tuple[str, ...]]] = []
    for fabric in options.fabric or list(FABRICS):
        wanted = [name for name in options.strategy or STRATEGIES if named or (fabric, name) not in there]
        found += [(fabric, tuple(wanted[at : at + options.chunk])) for at in range(0, len(wanted), options.chunk)]
    return found


def span(cells: list[Cell], ratio: str) -> float:
    """Largest over smallest of a similitude ratio, as achieved."""
    return max(each[ratio] for each in cells) / min(each[ratio] for each in cells)


def show(cells: list[Cell]) -> None:
    """The table, in the order of fabrics and strategies."""
    titles = "transfer / compute  RTT / compute  trials"
    print(f"{'fabric':8} {'strategy':14} {'predicted':>10} {'measured':>10} {'ratio':>6}  {titles}")
    by_name = {(each["fabric"], each["strategy"]): each for each in medians(cells)}
    for name in ((fabric, strategy) for fabric in FABRICS for strategy in STRATEGIES):
        each = by_name.get(name)
        if each is None:
            print(f"{name[0]:8} {name[1]:14} not measured yet")
            continue
        times = f"{each['predicted_s'] * 1e3:7.0f} ms {each['measured_s'] * 1e3:7.0f} ms {each['ratio']:6.2f}"
        print(
            f"{name[0]:8} {name[1]:14} {times}  {each['transfer_over_compute']:18.3g}  {each['rtt_over_compute']:13.3g}"
            f"  {' '.join(f'{ratio:.2f}' for ratio in each['ratios'])}{_remark(each)}"
        )


def _remark(each: Cell) -> str:
    if not steady(each):
        return f"  does not count, machine busy: compute took {each['compute_s']:.2f}, then {each['compute_again_s']:.2f} s"
    return "  more than 10% off" if abs(each["ratio"] - 1) > LIMIT else ""


def verdict(found: list[Cell]) -> int:
    """Says what is met on stderr; 0 where all is. Cells from a machine that was not steady count as not measured."""
    cells = [each for each in medians(found) if steady(each)]
    missing = len(FABRICS) * len(STRATEGIES) - len(cells)
    near = [each for each in cells if abs(each["ratio"] - 1) <= LIMIT]
    print(f"{len(near)} of {len(cells)} within {LIMIT:.0%}; {missing} not measured", file=sys.stderr)
    if missing:
        return 1
    spans = span(cells, "transfer_over_compute"), span(cells, "rtt_over_compute")
    print(f"spans: transfer / compute {spans[0]:.1f}x, RTT / compute {spans[1]:.1f}x", file=sys.stderr)
    if spans[0] < TRANSFER_SPAN or spans[1] < RTT_SPAN:
        print("the fabrics are too alike to prove anything", file=sys.stderr)
        return 1
    return 0 if len(near) == len(cells) else 1


def names_in(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names, all of them `known`."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabric", type=names_in(tuple(FABRICS)), metavar="A,B", help="only these, measured once more")
    parser.add_argument("--strategy", type=names_in(STRATEGIES), metavar="A,B", help="only these, measured once more")
    parser.add_argument("--chunk", type=int, default=1, help="strategies of one trial")
    parser.add_argument("--minutes", type=float, default=0.7, help="of training a strategy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=HERE / "build" / "prediction", help="of the trials' own files")
    parser.add_argument("--results", type=Path, default=HERE / "build" / "prediction.json")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    cells = kept(options.results)
    for fabric, strategies in [] if options.show else chunks(options, cells):
        cells = keep(options.results, cells, tried(fabric, strategies, options))
    if options.as_json:
        print(json.dumps(cells, indent=1))
    else:
        show(cells)
    return verdict(cells)


if __name__ == "__main__":
    sys.exit(main())
