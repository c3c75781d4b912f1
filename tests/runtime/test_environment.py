"""The rank environment: what a launcher may say, and the exact words for what it may not."""

import json
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.runtime.environment import read_environment, read_members, split_address

WORLD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TWO = {
    "regions": [
        {"name": "shenzhen", "rails": ["10.77.0.10:29600", "10.77.0.11:29600"]},
        {"name": "shanghai", "rails": ["10.77.1.10:29600", "10.77.1.11:29600"]},
    ],
    "flat_master": "10.77.0.10:29400",
}


def _federation(tmp_path: Path, members: object = TWO, **more: str) -> dict[str, str]:
    path = tmp_path / "members.json"
    path.write_text(json.dumps(members, indent=1))
    return {**WORLD, "ISTHMUS_REGION": "shanghai", "ISTHMUS_MEMBERS": str(path), **more}


def test_a_script_without_any_variable_runs_alone() -> None:
    alone = read_environment({})
    assert (alone.rank, alone.world_size, alone.regions, alone.global_size, alone.master) == (
        0,
        1,
        1,
        1,
        None,
    )


def test_torchrun_alone_is_one_region() -> None:
    one = read_environment(WORLD)
    assert (one.rank, one.world_size, one.regions, one.global_rank) == (1, 2, 1, 1)


def test_global_ranks_lay_regions_end_to_end(tmp_path: Path) -> None:
    second = read_environment(_federation(tmp_path))
    assert (second.region_index, second.global_rank, second.global_size) == (1, 3, 4)


def test_a_smaller_region_carries_the_rails_of_the_largest_one(tmp_path: Path) -> None:
    three = [f"10.77.2.{number}:29600" for number in range(3)]
    unequal = {"regions": [{"name": "tokyo", "rails": three}, *TWO["regions"]]}
    second = read_environment(_federation(tmp_path, unequal, RANK="0"))
    assert (second.global_rank, second.global_size) == (5, 7)
    assert second.rails == (0, 2)  # rail 2 of three goes to rank 0 of two again
    assert second.members is not None
    carried = [second.members.regions[2].address(rail) for rail in range(3)]
    assert carried == ["10.77.1.10:29600", "10.77.1.11:29600", "10.77.1.10:29600"]
    assert [region.name for region in second.members.only({"shanghai", "tokyo"}).regions] == ["tokyo", "shanghai"]


def test_the_coordinator_the_keys_and_plain_rails_are_chosen_by_name(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    store = "tcp://10.77.9.1:29700"
    found = read_environment({**WORLD, "ISTHMUS_COORDINATOR": store, "ISTHMUS_KEYS": keys, "ISTHMUS_INSECURE": "1"})
    assert (found.coordinator, str(found.keys), found.insecure) == (store, keys, True)
    with pytest.raises(InputError, match="ISTHMUS_INSECURE: 'yes' is neither 0 nor 1"):
        read_environment({**WORLD, "ISTHMUS_INSECURE": "yes"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "2"}, "RANK: '2' is not an integer of 0 to 1"),
        ({"RANK": "-1"}, "RANK: '-1' is not an integer of 0 to 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is not an integer of 1 to 1000000"),
        (
            {"MASTER_PORT": ""},
            "MASTER_PORT: is not set, but RANK is\n  hint: set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun does",
        ),
        (
            {"ISTHMUS_REGION": ""},
            "ISTHMUS_REGION: is not set, but ISTHMUS_MEMBERS is\n  hint: set it to this rank's region name",
        ),
        (
            {"ISTHMUS_REGION": "shangai"},
            "ISTHMUS_REGION: 'shangai' is not a region of {path}\n  hint: did you mean 'shanghai'?",
        ),
        (
            {"WORLD_SIZE": "3"},
            "WORLD_SIZE: is 3, but {path} gives 'shanghai' 2 rails\n  hint: one rail a rank",
        ),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_environment(_federation(tmp_path, **change))
    assert str(caught.value) == message.format(path=tmp_path / "members.json")


def test_members_without_a_region_world_are_refused(tmp_path: Path) -> None:
    variables = {name: value for name, value in _federation(tmp_path).items() if name not in WORLD}
    with pytest.raises(InputError, match=r"^RANK: is not set, but ISTHMUS_MEMBERS is"):
        read_environment(variables)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["regions"][1].update(name="shenzhen"), "the region 'shenzhen' is given twice"),
        (
            lambda m: m["regions"][1]["rails"].__setitem__(0, "10.77.0.10:29600"),
            "the address '10.77.0.10:29600' is given twice",
        ),
        (lambda m: m["regions"][1]["rails"].__setitem__(0, "10.77.0.10"), "'10.77.0.10' is not host:port"),
        (lambda m: m.update(flat_mater="x:1"), "did you mean 'flat_master'?"),
        (lambda m: m.update(regions=[]), "regions"),
    ],
)
def test_faulty_members_are_refused_with_their_line(tmp_path: Path, change, message: str) -> None:
    members = json.loads(json.dumps(TWO))
    change(members)
    path = tmp_path / "members.json"
    path.write_text(json.dumps(members, indent=1))
    with pytest.raises(InputError) as caught:
        read_members(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "host:²", "host:1x"])
def test_an_address_needs_a_host_and_a_real_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(text)


def test_an_ipv6_address_keeps_its_colons() -> None:
    assert split_address("[fd00::1]:29600") == ("fd00::1", 29600)
