"""The rank environment: what the launcher tells a rank, read here and nowhere else in the runtime.

`torchrun` sets the four variables of the region world; whoever joins regions adds the ISTHMUS_ ones. Without any of
them a script runs alone: one rank, one region.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from isthmus.documents import Document, load_document
from isthmus.errors import InputError, nearest

__all__ = [
    "LONE_REGION",
    "Members",
    "RankEnvironment",
    "RegionMembers",
    "read_environment",
    "read_members",
    "split_address",
]

LONE_REGION = "here"


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its two parts.

    Raises:
        ValueError: There is no port, or it is not within 1-65535; the message says which.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is not host:port with a port of 1-65535 (e.g. '10.77.0.10:29600')")
    return host.strip("[]"), int(port)


def _checked(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_checked)]


class RegionMembers(Document):
    """One region: where each of its ranks listens for other regions, by rank."""

    name: Annotated[str, Field(min_length=1)]
    rails: Annotated[list[Address], Field(min_length=1)]

    @property
    def ranks(self) -> int:
        """How many ranks the region has."""
        return len(self.rails)

    def address(self, rail: int) -> str:
        """Where rail `rail` of this region listens: at the rank that carries it, number `rail` mod ranks."""
        return self.rails[rail % len(self.rails)]


class Members(Document):
    """Who takes part, in the order that numbers the regions.

    `flat_master` is where the one process group over all ranks of all regions meets (only the flat strategy needs it).
    """

    regions: Annotated[list[RegionMembers], Field(min_length=1)]
    flat_master: Address | None = None

    @property
    def rails(self) -> int:
        """How many rails join the regions: as many as the largest region has ranks; a rank of a smaller one carries several."""
        return max(region.ranks for region in self.regions)

    def only(self, regions: Collection[str]) -> "Members":
        """The same members without those not named in `regions`; their order stays."""
        return self.model_copy(update={"regions": [region for region in self.regions if region.name in regions]})

    def index(self, region: str) -> int:
        """The number of `region`; -1 where it is not a member."""
        names = [entry.name for entry in self.regions]
        return names.index(region) if region in names else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """One rank's place in the run.

    Attributes:
        rank: Within the region world.
        world_size: Ranks of the region world.
        local_rank: Among the ranks of its node, which is also the number of its GPU.
        master: host:port of the region world's store; None for a rank that runs alone.
        agent_store: torchrun's agent already serves that store; else rank 0 does.
        region: Name of this rank's region.
        region_index: Its number in `members`; 0 without.
        members: All regions, or None for a rank that knows of one region only.
        plan_path: The plan document the launcher chose, if any.
        metrics_dir: Where metrics lines go; None writes none.
        blocks: Measurement schedule as written, or None for plain training.
        coordinator: Address of the store through which regions regroup (see `isthmus coordinator`); None: a lost region ends
            the run.
        keys: Folder with the region's certificate (see `isthmus keys`); None: rails are not encrypted.
        insecure: Rails in the clear are allowed beyond the loopback interface.
        trace: Spans are recorded in the metrics.
        checkpoints: Folder of the region's checkpoints where the script names none (`cluster.sync`); None: it has none.
        chaos_flip: (round, byte): corrupt that round on purpose, see `runtime.chaos`; None in every real run.
        export: host:port on which the region's rank 0 serves Prometheus metrics, rank r on port + r; None serves none.
    """

    rank: int
    world_size: int
    master: tuple[str, int] | None
    region: str
    region_index: int
    members: Members | None
    plan_path: Path | None
    metrics_dir: Path | None
    blocks: str | None
    local_rank: int = 0
    agent_store: bool = False
    coordinator: str | None = None
    keys: Path | None = None
    insecure: bool = False
    trace: bool = False
    export: tuple[str, int] | None = None
    checkpoints: Path | None = None
    chaos_flip: tuple[int, int] | None = None

    @property
    def regions(self) -> int:
        """How many regions take part."""
        return len(self.members.regions) if self.members else 1

    @property
    def global_rank(self) -> int:
        """This rank's number among all ranks of all regions, regions laid end to end."""
        before = self.members.regions[: self.region_index] if self.members else []
        return sum(region.ranks for region in before) + self.rank

    @property
    def global_size(self) -> int:
        """Ranks of all regions together."""
        return sum(region.ranks for region in self.members.regions) if self.members else self.world_size

    @property
    def rails(self) -> tuple[int, ...]:
        """Numbers of the rails that this rank carries."""
        return tuple(range(self.rank, self.members.rails if self.members else 0, self.world_size))


def read_members(path: Path | str) -> Members:
    """Read and check members.json.

    Raises:
        InputError: It cannot be read, or has unknown keys, equal names or one address twice.
    """
    members, lines = load_document(path, Members)
    names: set[str] = set()
    addresses: set[str] = set()
    for number, region in enumerate(members.regions):
        if region.name in names:
            raise lines.error(("regions", number, "name"), f"the region {region.name!r} is given twice", "names must differ")
        for rail in region.rails:
            if rail in addresses:
                raise lines.error(("regions", number, "rails"), f"the address {rail!r} is given twice", "one address a rank")
            addresses.add(rail)
        names.add(region.name)
    return members


def read_environment(environ: Mapping[str, str] | None = None) -> RankEnvironment:
    """Read the rank environment (`os.environ` unless given).

    Raises:
        InputError: A variable is missing, malformed or disagrees with members.json; the error names it.
    """
    variables = os.environ if environ is None else environ
    rank, world_size, master = _region_world(variables)
    region, members = _federation(variables, world_size)
    return RankEnvironment(
        rank=rank,
        world_size=world_size,
        master=master,
        region=region,
        region_index=members.index(region) if members else 0,
        members=members,
        plan_path=_path(variables, "ISTHMUS_PLAN"),
        metrics_dir=_path(variables, "ISTHMUS_METRICS"),
        blocks=variables.get("ISTHMUS_BLOCKS") or None,
        local_rank=_integer(variables, "LOCAL_RANK", 0, 1023) if variables.get("LOCAL_RANK") else 0,
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        coordinator=variables.get("ISTHMUS_COORDINATOR") or None,
        keys=_path(variables, "ISTHMUS_KEYS"),
        insecure=_flag(variables, "ISTHMUS_INSECURE"),
        trace=_flag(variables, "ISTHMUS_TRACE"),
        export=_export(variables, rank),
        checkpoints=_path(variables, "ISTHMUS_CHECKPOINTS"),
        chaos_flip=_chaos_flip(variables),
    )


def _region_world(variables: Mapping[str, str]) -> tuple[int, int, tuple[str, int] | None]:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = [name for name in names if variables.get(name)]
    if not given:
        if variables.get("ISTHMUS_MEMBERS"):
            raise InputError("RANK", "is not set, but ISTHMUS_MEMBERS is", f"set {', '.join(names)} as torchrun does")
        return 0, 1, None
    for name in names:
        if name not in given:
            raise InputError(name, f"is not set, but {given[0]} is", f"set {', '.join(names)} as torchrun does")
    world_size = _integer(variables, "WORLD_SIZE", 1, 1_000_000)
    rank = _integer(variables, "RANK", 0, world_size - 1)
    return rank, world_size, (variables["MASTER_ADDR"], _integer(variables, "MASTER_PORT", 1, 65535))


def _federation(variables: Mapping[str, str], world_size: int) -> tuple[str, Members | None]:
    path, region = variables.get("ISTHMUS_MEMBERS"), variables.get("ISTHMUS_REGION")
    if not path:
        return region or LONE_REGION, None
    if not region:
        raise InputError("ISTHMUS_REGION", "is not set, but ISTHMUS_MEMBERS is", "set it to this rank's region name")
    members = read_members(path)
    if members.index(region) < 0:
        raise InputError(
            "ISTHMUS_REGION",
            f"{region!r} is not a region of {path}",
            nearest(region, [entry.name for entry in members.regions]),
        )
    rails = len(members.regions[members.index(region)].rails)
    if rails != world_size:
        raise InputError("WORLD_SIZE", f"is {world_size}, but {path} gives {region!r} {rails} rails", "one rail a rank")
    return region, members


def _integer(variables: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = variables[name]
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise InputError(name, f"{text!r} is not an integer of {low} to {high}")
    return int(text)


def _flag(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name) or "0"
    if text not in ("0", "1"):
        raise InputError(name, f"{text!r} is neither 0 nor 1")
    return text == "1"


def _export(variables: Mapping[str, str], rank: int) -> tuple[str, int] | None:
    text = variables.get("ISTHMUS_EXPORT")
    if not text:
        return None
    try:
        host, port = split_address(text if ":" in text else f"127.0.0.1:{text}")
    except ValueError as error:
        raise InputError("ISTHMUS_EXPORT", str(error), "a port for loopback only, or host:port") from None
    return host, port + rank


def _chaos_flip(variables: Mapping[str, str]) -> tuple[int, int] | None:
    text = variables.get("ISTHMUS_CHAOS_FLIP")
    if not text:
        return None
    number, _, byte = text.partition(":")
    if not (number.isascii() and number.isdecimal() and byte.isascii() and byte.isdecimal()):
        raise InputError("ISTHMUS_CHAOS_FLIP", f"{text!r} is not ROUND:BYTE", "unset it: it corrupts a run on purpose")
    return int(number), int(byte)


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    text = variables.get(name)
    return Path(text) if text else None
