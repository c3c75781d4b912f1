"""`isthmus check`: what is wrong, doubtful or worth knowing about a fabric file."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isthmus.fabric.checks import check_fabric

EXAMPLES = """Examples:

isthmus check examples/shenzhen-shanghai.yaml

isthmus check my-fabric.yaml --json
"""


def check(
    fabric: Annotated[Path, typer.Argument(help="A fabric.yaml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Check a fabric file: reach, compatibility, physics. Exit 1 where there is an error or a warning."""
    findings = check_fabric(fabric)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            print(f"{finding.severity}: {finding.where}: {finding.reason}\n  {finding.rule}; source: {finding.source}")
        counts = Counter(finding.severity for finding in findings)
        print(", ".join(_count(counts[severity], word) for severity, word in _WORDS))
    if any(finding.severity != "info" for finding in findings):
        raise typer.Exit(1)


_WORDS = (("error", "error"), ("warning", "warning"), ("info", "note"))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
