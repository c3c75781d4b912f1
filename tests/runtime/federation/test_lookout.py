"""Two branches after a partition: however stale what each knows of the other, only one of them gives way."""

from dataclasses import replace

import pytest

from isthmus.plan import Survival
from isthmus.runtime.environment import Members
from isthmus.runtime.federation.coordinator import serving
from isthmus.runtime.federation.facts import View
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import dump, read_view
from isthmus.runtime.federation.lookout import Lookout
from isthmus.runtime.federation.store import open_store
from isthmus.runtime.loopback import free_ports

REGIONS = ("east", "west")
LIVE = {region: f"{region}-1" for region in REGIONS}
BRANCHES = {region: Generation(number=7, regions=(region,), incarnations=(LIVE[region],), branch=region) for region in REGIONS}


class Side(Lookout):
    """One side, which finds the other ahead."""

    def __init__(self, address: str, region: str, members: Members) -> None:
        super().__init__(open_store(address), region, members, Survival(on_partition="continue"), "run")
        self.probe, self.say, self._generation = (lambda *_: "open"), (lambda _: None), BRANCHES[region]

    def read(self) -> View:
        ahead = {region: 0 if region == self.region else 1000 for region in REGIONS}
        return replace(read_view(self._ledger, self._store.list(self._ledger.prefix)), progress=ahead)

    def look(self, view: View) -> None:
        self._look_for_heal(BRANCHES[self.region], view)

    @property
    def leaves(self) -> bool:
        return self._superseded


def test_a_branch_that_trains_is_not_disturbed_by_another_that_is_newer_and_ahead() -> None:
    # Each disturbed the other by every generation that it formed, and neither came to look for a heal.
    (port,) = free_ports(1)
    members = Members.model_validate({"regions": [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name in REGIONS]})
    with serving(("127.0.0.1", port)):
        side = Side(f"tcp://127.0.0.1:{port}", "east", members)
        newer = replace(BRANCHES["west"], number=8, tokens=1000)
        side._view = View(live=LIVE, generations=BRANCHES | {"west": newer}, progress={"west": 1000})
        assert not side._disturbed(BRANCHES["east"])
        # But by one of its own branch, or one that it has been moved into.
        for found in (replace(newer, branch="east"), replace(newer, regions=REGIONS, incarnations=tuple(LIVE.values()))):
            side._view = replace(side._view, generations=BRANCHES | {found.branch: found})
            assert side._disturbed(BRANCHES["east"])
        side._store.close()


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("first", REGIONS)
def test_of_two_branches_that_find_each_other_ahead_only_the_first_to_say_so_gives_way(first: str, stale: bool) -> None:
    (port,) = free_ports(1)
    members = Members.model_validate({"regions": [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name in REGIONS]})
    with serving(("127.0.0.1", port)):
        sides = {region: Side(f"tcp://127.0.0.1:{port}", region, members) for region in REGIONS}
        order = [first, *(region for region in REGIONS if region != first)]
        for region in REGIONS:
            ledger = sides[region]._ledger
            sides[region]._store.txn({}, {ledger.generation(region): dump(BRANCHES[region]), ledger.live(region): LIVE[region]})
        views = {region: sides[region].read() for region in REGIONS}
        for region in [*order, *order]:  # looking again changes nothing
            sides[region].look(views[region] if stale else sides[region].read())
            assert [other for other in REGIONS if sides[other].leaves] == [first]
        for side in sides.values():
            side._store.close()
