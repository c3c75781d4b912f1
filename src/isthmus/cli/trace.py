"""`isthmus trace`: the steps, buckets, syncs and stalls of a run as one picture, for Perfetto."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isthmus.errors import InputError

EXAMPLES = """Examples:

isthmus trace isthmus-run/metrics -o trace.json        # then open it at ui.perfetto.dev or chrome://tracing

isthmus trace isthmus-try/run-int4/metrics --last 20 -o trace.json
"""


def trace(
    metrics: Annotated[Path, typer.Argument(help="Folder in which the ranks wrote their metrics.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the trace.")] = Path("trace.json"),
    last: Annotated[int | None, typer.Option(help="Only the last N steps of each rank.", min=1)] = None,
) -> None:
    """Write a run's spans as a trace that Perfetto and Chrome show."""
    from isthmus.formats.perfetto import trace_events
    from isthmus.runtime.spans import read_spans

    spans = read_spans(metrics, last)
    if not spans:
        raise InputError(str(metrics), "holds no spans", "run with ISTHMUS_TRACE=1 (isthmus run --trace sets it)")
    text = json.dumps(trace_events(spans), separators=(",", ":"))
    partial = output.with_name(f"{output.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(output)
    print(f"{output}: {len(spans)} spans of {len({span.process for span in spans})} ranks", file=sys.stderr)
