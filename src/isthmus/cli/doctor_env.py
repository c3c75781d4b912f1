"""`isthmus doctor env`: what NCCL makes of the settings of a script, a container, a machine."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from isthmus.doctor.text import Document

EXAMPLES = """Examples:

isthmus doctor env job.sbatch --nccl 2.27.3

kubectl get pod trainer-0 -o yaml | isthmus doctor env -

isthmus doctor env --about NCCL_IB_TC
"""


def env(
    path: Annotated[
        str | None, typer.Argument(help="Script, YAML, Dockerfile, nccl.conf or -; this shell's settings if left out.")
    ] = None,
    nccl: Annotated[str | None, typer.Option("--nccl", help="NCCL version that will read them.")] = None,
    about: Annotated[str | None, typer.Option("--about", help="Tell what one variable does.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Check settings of NCCL, its plugins, UCX, Gloo and torch: names, values as NCCL reads them, versions, contradictions."""
    from isthmus.cli.doctor import finish, show, version_of
    from isthmus.doctor.judge import diagnose
    from isthmus.doctor.readers.settings import PREFIXES
    from isthmus.doctor.sources import documents
    from isthmus.doctor.text import document

    if about:
        _about(about, as_json)
        return
    if path is None:
        text = "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES))
        found = [document(text, "this shell")]
    else:
        found = list(documents([path], sys.stdin.buffer))
    report = diagnose(found, nccl_version=version_of(nccl))
    if not as_json:
        show(_settings(found))
    finish(report, everything=False, as_json=as_json, sarif=None, html=None)


def _settings(found: "list[Document]") -> "list[tuple[str, str]]":
    """A line a setting: as it is written, as NCCL reads it, what it does."""
    from isthmus.doctor.env.table import variables
    from isthmus.doctor.env.values import read_integer
    from isthmus.doctor.facts.nccl import EnvSetting
    from isthmus.doctor.readers.settings import read_environment

    lines: list[tuple[str, str]] = []
    for text in found:
        for fact in read_environment(text):
            if not isinstance(fact, EnvSetting) or fact.unset:
                continue
            variable = variables().get(fact.name)
            reading = (
                read_integer(fact.value)
                if variable and variable.kind in {"int", "bytes"} and variable.status != "framework"
                else None
            )
            read = f" (read as {reading.value})" if reading and not reading.clean else ""
            does = variable.does if variable else "not in the table"
            lines.append(("", f"{fact.name}={fact.value}{read}  {does}"))
    return [*lines, ("", "")] if lines else []


def _about(name: str, as_json: bool) -> None:
    from dataclasses import asdict

    from isthmus.doctor.env.table import variables
    from isthmus.errors import InputError, nearest

    variable = variables().get(name.upper())
    if variable is None:
        raise InputError("--about", f"no variable {name!r}", nearest(name.upper(), variables()))
    if as_json:
        print(json.dumps(asdict(variable), indent=2))
        return
    accepts = ", ".join(map(str, variable.accepts)) or (
        f"{variable.low}..{variable.high if variable.high is not None else ''}" if variable.low is not None else "any"
    )
    rows = [
        ("status", variable.status),
        ("read as", variable.kind),
        ("accepts", accepts),
        ("default", variable.default),
        ("since", variable.since),
        ("last in", variable.last),
        ("deprecated", variable.deprecated),
        ("meant", variable.meant),
        ("does", variable.does),
    ]
    print(variable.name)
    for label, text in rows:
        if text:
            print(f"  {label:<11} {text}")
