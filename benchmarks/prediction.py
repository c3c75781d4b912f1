"""C6: predicted against measured step time in the wind tunnel, every strategy on three fabrics that differ in kind.

    make prediction                                        # about 20 minutes
    python benchmarks/prediction.py --only carrier         # one fabric

Each fabric is examples/shenzhen-shanghai.yaml with another line between its regions, tried as `isthmus try` does it: compute
is measured with the WAN off, the predictions are written, and only then the strategies run; a step time is the median of three
on-blocks. What counts is predicted / measured. The ratios that decide how a strategy fares (transfer / compute and RTT /
compute) must span 5x and 3x over the fabrics, or the benchmark says that it proves nothing.

Exit 0 when every ratio is within 10% on every fabric, else 1.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.trial import TrialRequest, run_trial

HERE = Path(__file__).resolve().parents[1]
LIMIT, TRANSFER_SPAN, RTT_SPAN = 0.10, 5.0, 3.0
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


def tried(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One trial, and its results document."""
    options.output.mkdir(parents=True, exist_ok=True)
    request = TrialRequest(
        fabric=fabric_file(name, options.output),
        workload=str(HERE / "examples" / "workloads" / "llama-3-8b-256k.yaml"),
        strategies=tuple(options.strategies.split(",")),
        minutes=options.minutes,
        rate=None,
        rtt=None,
        script=None,
        faults=(),
        output=options.output / name,
        seed=options.seed,
    )
    return run_trial(request)


def rows(name: str, results: dict[str, Any]) -> list[tuple[str, str, float, float, float]]:
    """(fabric, strategy, predicted s, measured s, ratio)."""
    return [
        (name, each["name"], each["predicted"]["step_s"], each["measured"]["step_s"], each["ratio"])
        for each in results["strategies"]
    ]


def span(found: dict[str, dict[str, Any]], ratio: str) -> float:
    """Largest over smallest of a similitude ratio, as achieved."""
    values = [results["tunnel"]["similitude"][ratio]["achieved"] for results in found.values()]
    return max(values) / min(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FABRICS, action="append")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training a fabric")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=HERE / "build" / "prediction")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    names = options.only or list(FABRICS)
    found = {name: tried(name, options) for name in names}
    table = [row for name, results in found.items() for row in rows(name, results)]
    missed = [row for row in table if abs(row[4] - 1) > LIMIT]
    if options.as_json:
        keys = ("fabric", "strategy", "predicted_s", "measured_s", "ratio")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in table], indent=1))
    else:
        for name, results in found.items():
            ratios = results["tunnel"]["similitude"]
            print(f"{name}: transfer / compute {ratios['transfer_over_compute']['achieved']:.3g}, "
                  f"RTT / compute {ratios['rtt_over_compute']['achieved']:.3g}")
        print(f"{'fabric':10} {'strategy':14} {'predicted':>10} {'measured':>10} {'ratio':>6}")
        for name, strategy, predicted, measured, ratio in table:
            print(f"{name:10} {strategy:14} {predicted * 1e3:7.0f} ms {measured * 1e3:7.0f} ms {ratio:6.2f}"
                  f"{'  more than 10% off' if abs(ratio - 1) > LIMIT else ''}")
    if len(found) == len(FABRICS):
        spans = span(found, "transfer_over_compute"), span(found, "rtt_over_compute")
        print(f"spans: transfer / compute {spans[0]:.1f}x, RTT / compute {spans[1]:.1f}x", file=sys.stderr)
        if spans[0] < TRANSFER_SPAN or spans[1] < RTT_SPAN:
            print("the fabrics are too alike to prove anything", file=sys.stderr)
            sys.exit(1)
    print(f"{len(table) - len(missed)} of {len(table)} within {LIMIT:.0%}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
