"""`isthmus doctor explain`: what a rule means."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

EXAMPLES = """Examples:

isthmus doctor explain NVL-01

isthmus doctor explain --json
"""


def explain(
    name: Annotated[str | None, typer.Argument(metavar="RULE", help="A rule such as NVL-01; all rules if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Tell what a rule means: threshold, source, why it matters, what to do."""
    from isthmus.cli.doctor import show
    from isthmus.doctor.finding import rule, rules
    from isthmus.doctor.show import explain_lines

    if as_json:
        print(
            json.dumps(
                [asdict(rule(name))] if name else [asdict(book) for book in rules().values()], indent=2, ensure_ascii=False
            )
        )
    elif name:
        show(explain_lines(name))
    else:
        show([("", f"{book.id:<8} {book.severity:<6} {book.title}") for book in rules().values()])
