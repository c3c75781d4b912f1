"""`isthmus doctor collect`: ask this node's tools and pack the answers, or print the script that does so without isthmus."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from isthmus.errors import InputError

EXAMPLES = """Examples:

isthmus doctor collect -o node7.tar.gz

isthmus doctor collect --script > collect.sh && pdsh -w node[1-64] 'bash /shared/collect.sh -o /shared/$(hostname).tar.gz'
"""


def collect(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The bundle to write.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Blank addresses, serial numbers and identifiers.")] = False,
    wait: Annotated[int, typer.Option("--wait", min=0, max=600, help="Seconds between the two samples of counters.")] = 20,
    script: Annotated[bool, typer.Option("--script", help="Print the script instead of running it.")] = False,
) -> None:
    """Collect what the doctor reads. Everything only reads; each command ends after 30 s."""
    from isthmus.doctor.commands import collect_script

    if script:
        print(collect_script(), end="")
        return
    if output is None:
        raise InputError("isthmus doctor collect", "no bundle named", "-o bundle.tar.gz, or --script")
    arguments = ["-o", str(output.absolute()), "-w", str(wait), *(["-r"] if redact else [])]
    done = subprocess.run(["bash", "-s", "--", *arguments], input=collect_script(), text=True, check=False)
    if done.returncode:
        raise InputError(str(output), "the bundle could not be written", "is the folder there and writable?")
