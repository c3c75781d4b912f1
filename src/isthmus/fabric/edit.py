"""Change values of a fabric document by the names its keys have: `wan.rate`, `regions.shanghai.nodes`, `rtt`.

Without a link or a region all are meant. `regions.R.nodes` is the number of nodes. Names of `wan`'s keys may stand alone.
"""

from collections.abc import Iterator
from typing import Any, cast

import yaml

from isthmus.errors import InputError, nearest
from isthmus.fabric.document import NetworkEntry, NodesEntry, PricesEntry, RegionEntry, WanEntry

__all__ = ["edited", "fabric_paths", "is_fabric_path"]

Tree = dict[str, Any]


def _keys(model: Any) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


WAN_KEYS = [key for key in _keys(WanEntry) if key not in ("between", "class", "transport")]
NODES_KEYS = [key for key in _keys(NodesEntry) if key in ("count", "gpus", "power")]
NETWORK_KEYS = [key for key in _keys(NetworkEntry) if key in ("rate", "oversubscription")]
PRICE_KEYS = [key for key in _keys(PricesEntry) if key not in ("currency", "as_of", "source")]


def fabric_paths(data: Tree) -> list[str]:
    """Every path that `edited` takes for the document `data`, the short ones first."""
    regions = list(cast(Tree, data["regions"]))
    links = ["-".join(cast(list[str], link["between"])) for link in cast(list[Tree], data.get("wan", []))]
    found = [f"wan.{key}" for key in WAN_KEYS] + [f"wan.{link}.{key}" for link in links for key in WAN_KEYS]
    for region in (*(f"regions.{name}" for name in regions), "regions"):
        found += [f"{region}.nodes", *(f"{region}.nodes.{key}" for key in NODES_KEYS)]
        found += [f"{region}.network.{key}" for key in NETWORK_KEYS]
    return [*WAN_KEYS, *found, *(f"prices.{key}" for key in PRICE_KEYS)]


def is_fabric_path(path: str) -> bool:
    """Whether `path` begins like one of a fabric's; it may still name nothing."""
    return path.split(".", maxsplit=1)[0] in ("wan", "regions", "prices", *WAN_KEYS)


def edited(text: str, source: str, changes: dict[str, float | int | str]) -> str:
    """The document `text` with the value at each path replaced; comments are lost, so it is for reading by us only.

    Args:
        text: A fabric document that has been read without fault.
        source: Its name in messages.
        changes: Path -> value, as the document would write it.

    Raises:
        InputError: A path names nothing in this document; the hint is the nearest one.
    """
    data = cast(Tree, yaml.load(text, Loader=yaml.CSafeLoader))
    for path, value in changes.items():
        places = list(_places(data, path.split(".")))
        if not places:
            raise InputError(source, f"no key is called {path!r}", nearest(path, fabric_paths(data)))
        for holder, key in places:
            holder[key] = value
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))  # pyright: ignore[reportUnknownMemberType]


def _places(data: Tree, path: list[str]) -> Iterator[tuple[Tree, str]]:
    match path:
        case [key] if key in WAN_KEYS:
            yield from _places(data, ["wan", key])
        case ["wan", key] if key in WAN_KEYS:
            yield from ((link, key) for link in cast(list[Tree], data.get("wan", [])))
        case ["wan", pair, key] if key in WAN_KEYS:
            yield from ((link, key) for link in cast(list[Tree], data.get("wan", [])) if _joins(link, pair))
        case ["regions", name, *rest] if name in data["regions"]:
            yield from _in_region(cast(Tree, data["regions"][name]), rest)
        case ["regions", *rest] if rest and rest[0] in _keys(RegionEntry):
            for region in cast(Tree, data["regions"]).values():
                yield from _in_region(cast(Tree, region), rest)
        case ["prices", key] if key in PRICE_KEYS and isinstance(data.get("prices"), dict):
            yield cast(Tree, data["prices"]), key
        case _:
            return


def _joins(link: Tree, pair: str) -> bool:
    first, second = cast(list[str], link["between"])
    return pair in (f"{first}-{second}", f"{second}-{first}")


def _in_region(region: Tree, rest: list[str]) -> Iterator[tuple[Tree, str]]:
    match rest:
        case ["nodes"] if len(region["nodes"]) == 1:
            yield region["nodes"][0], "count"
        case ["nodes", key] if key in NODES_KEYS:
            yield from ((group, key) for group in cast(list[Tree], region["nodes"]))
        case ["network", key] if key in NETWORK_KEYS and isinstance(region.get("network"), dict):
            yield cast(Tree, region["network"]), key
        case _:
            return
