"""What a person sees when a trial ends."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from isthmus.report import trial_table

__all__ = ["show_results"]


def show_results(results: dict[str, Any], *, as_json: bool, output: Path) -> None:
    """Print the table (or results.json) on stdout, and where the files are on stderr."""
    if as_json:
        print(json.dumps(results, indent=1, ensure_ascii=False))
    else:
        console = Console()
        if results["strategies"]:
            console.print(trial_table(results))
        for fault in results["faults"]:
            console.print(f"at {fault['at_s']:.1f} s, {fault['what']}: {fault['seen']}", markup=False, highlight=False)
        for line in similitude_lines(results):
            console.print(line, markup=False, highlight=False)
    print(f"report: {output / 'report.html'}\nresults: {output / 'results.json'}\nplans: {output}/plan-*.yaml",
          file=sys.stderr)


def similitude_lines(results: dict[str, Any]) -> list[str]:
    """The two ratios, asked and achieved, and what the scaling leaves out."""
    ratios = results["tunnel"]["similitude"]
    lines = [
        f"{name.replace('_', ' ')}: {ratios[name]['asked']:.3g} on the real fabric, {ratios[name]['achieved']:.3g} in the tunnel"
        for name in ("transfer_over_compute", "rtt_over_compute")
    ]
    return [*lines, *(f"left out: {text}" for text in ratios["left_out"])]
