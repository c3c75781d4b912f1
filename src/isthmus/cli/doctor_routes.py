"""`isthmus doctor routes`: can these routes deadlock a lossless network?"""

import json
import sys
from typing import Annotated

import typer

EXAMPLES = """Examples:

isthmus doctor routes routes.txt

printf 'h1 -> s1 -> s2 -> h2' | isthmus doctor routes -
"""


def routes(
    path: Annotated[str, typer.Argument(help="One route a line, h1 -> leaf1 -> spine1 -> h2; - for standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Look for a cycle of buffer dependencies: RoCE with PFC can stop for ever in one. Exit 1 when there is one."""
    from pathlib import Path

    from isthmus.doctor.routes import find_deadlock, parse_routes

    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="replace")
    found = parse_routes(text, "<stdin>" if path == "-" else path)
    deadlock = find_deadlock(found)
    if as_json:
        cycle = (
            None
            if deadlock is None
            else [{"link": list(a), "route": r.where} for a, r in zip(deadlock.links, deadlock.routes, strict=True)]
        )
        print(json.dumps({"routes": len(found), "deadlock": cycle}, indent=2))
    elif deadlock is None:
        print(f"{len(found)} routes: no cycle of buffer dependencies, they cannot deadlock.")
    else:
        print(f"ERROR  {len(found)} routes can deadlock: {len(deadlock.links)} buffers wait for each other in a circle.")
        for (a, b), route in zip(deadlock.links, deadlock.routes, strict=True):
            print(f"  {a} -> {b} waits for the next, because of {route.where}: {' -> '.join(route.hops)}")
        print("  do        # take one of these routes away, or forbid the turn from down to up (valley-free routing)")
    if deadlock is not None:
        raise typer.Exit(1)
