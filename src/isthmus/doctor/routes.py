"""Deadlock of a lossless network: a cycle in the buffer dependencies of its routes, named.

With PFC a packet waits in the buffer of link (a, b) for room in the buffer of link (b, c). If a route goes a, b, c the
first depends on the second; a cycle of such dependencies can stop for ever, and only then (Dally & Seitz, IEEE Trans.
Computers 36(5), 1987).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from isthmus.errors import InputError

__all__ = ["Deadlock", "Route", "find_deadlock", "parse_routes"]

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """The devices that a packet passes, sender first; `where` is file:line."""

    hops: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Deadlock:
    """A shortest cycle through one link: its links in order, and for each dependency a route that makes it."""

    links: tuple[Link, ...]
    routes: tuple[Route, ...]


def parse_routes(text: str, where: str) -> list[Route]:
    """One route a line: `h1 -> leaf1 -> spine1 -> leaf2 -> h2` (or blanks between); `#` starts a comment. Raises InputError."""
    routes: list[Route] = []
    for number, line in enumerate(text.splitlines(), 1):
        body = line.split("#")[0].strip()
        if not body:
            continue
        hops = tuple(part.strip() for part in (body.split("->") if "->" in body else body.split()))
        if len(hops) < 2 or not all(hops):
            raise InputError(f"{where}:{number}", f"{body[:80]!r} is no route", "e.g. h1 -> leaf1 -> spine1 -> leaf2 -> h2")
        twice = next((hop for hop in hops if hops.count(hop) > 1), None)
        if twice is not None:
            raise InputError(
                f"{where}:{number}",
                f"the route passes {twice} twice",
                "a packet that comes back loops for ever: fix the routing first",
            )
        routes.append(Route(hops, f"{where}:{number}"))
    if not routes:
        raise InputError(where, "no route in it", "e.g. h1 -> leaf1 -> spine1 -> leaf2 -> h2")
    return routes


def find_deadlock(routes: Iterable[Route]) -> Deadlock | None:
    """The shortest cycle of buffer dependencies, or None: then the routes cannot deadlock."""
    after: dict[Link, dict[Link, Route]] = {}
    for route in routes:
        links = list(pairwise(route.hops))
        for first, second in pairwise(links):
            after.setdefault(first, {}).setdefault(second, route)
    best: list[Link] | None = None
    for start in sorted(_in_cycles(after)):
        found = _shortest_back(after, start)
        if found and (best is None or len(found) < len(best)):
            best = found
    if best is None:
        return None
    return Deadlock(tuple(best), tuple(after[a][b] for a, b in zip(best, best[1:] + best[:1], strict=True)))


def _in_cycles(after: dict[Link, dict[Link, Route]]) -> set[Link]:
    """Links that remain when those without successor or without predecessor are taken away again and again."""
    alive = set(after)
    while True:
        reached = {link for source in alive for link in after[source]}
        rest = {link for link in alive if link in reached and any(other in alive for other in after[link])}
        if rest == alive:
            return alive
        alive = rest


def _shortest_back(after: dict[Link, dict[Link, Route]], start: Link) -> list[Link] | None:
    """Breadth first from a link back to itself."""
    came: dict[Link, Link] = {}
    front = [start]
    while front:
        following: list[Link] = []
        for link in front:
            for other in sorted(after.get(link, {})):
                if other == start:
                    path = [link]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return path[::-1]
                if other not in came:
                    came[other] = link
                    following.append(other)
        front = following
    return None
