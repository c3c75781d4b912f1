"""`isthmus keys`: certificates for TLS between regions."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from isthmus.keys import OWNER_DAYS, make_keys

EXAMPLES = """Examples:

isthmus keys shenzhen shanghai -o keys/

isthmus keys chengdu -o keys/        (adds a region later; needs ca.key)
"""


def keys(
    regions: Annotated[list[str], typer.Argument(metavar="REGION...", help="Names of regions, as in members.json.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder; nothing in it is overwritten.")] = Path("keys"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the new certificates.")] = OWNER_DAYS,
) -> None:
    """Make an authority and one certificate a region (and one for the coordinator), for TLS between regions."""
    for path in make_keys(regions, output, days):
        print(path)
    print(
        f"Give each region {output}/ca.pem and its own .pem and .key, as ISTHMUS_KEYS; keep {output}/ca.key to yourself.",
        file=sys.stderr,
    )
