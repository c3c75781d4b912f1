"""One region of the comparison under isthmus: `LocalSync` in rounds with a vote, over rails with TLS and acknowledgements."""

from collections.abc import Mapping
from typing import Any

import torch
from window import TOKENS_PER_STEP, Record, Settings, Trained, read_settings

from isthmus.plan import load_plan
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import read_environment
from isthmus.runtime.federation.membership import Membership
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.rounds import Rounds
from isthmus.runtime.federation.states import Rejoined, State
from isthmus.runtime.federation.store import open_store
from isthmus.runtime.local_steps.link import RoundsLink
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import federation_id
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.rail import RailOptions
from isthmus.runtime.world import World


class Keeper:
    """Hands the outer state over; the loop comes after the rounds that need it."""

    def __init__(self) -> None:
        self.local: LocalSync | None = None

    def export_state(self, rail: int) -> State:
        """See `StateKeeper`."""
        assert self.local is not None
        return self.local.loop.export(rail)

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """See `StateKeeper`; at the start all regions hold the same parameters."""
        assert self.local is not None
        self.local.loop.take_over(parts)


def open_sync(model: Trained, settings: Settings) -> tuple[LocalSync, Rounds]:
    """What `isthmus.join` sets up, for a region of one rank."""
    environment = read_environment()
    assert environment.members is not None
    assert environment.plan_path is not None
    assert environment.coordinator is not None
    plan = load_plan(environment.plan_path)
    identity = Identity.load(environment.keys, environment.region) if environment.keys else None
    own = environment.members.regions[environment.region_index].rails[0]
    door = Door(own, federation_id(environment.members), environment.region_index, identity, insecure=environment.insecure)
    options = RailOptions(detect_s=plan.survival.detect_s, insecure=environment.insecure, identity=identity)
    store = open_store(environment.coordinator, identity.calling if identity else None, patience_s=plan.survival.detect_s)
    membership = Membership(store, environment.region, environment.members, plan.survival)
    keeper, courier = Keeper(), Courier()
    opener = RailOpener(environment, door, plan.strategy.streams, options)
    rounds = Rounds(environment, World(), membership, opener, plan.survival, keeper)
    link = RoundsLink(environment, None, courier, rounds, plan.strategy)
    keeper.local = local = LocalSync(list(model.bulk), link, plan.strategy)
    courier.submit(rounds.open).result()
    return local, rounds


def main() -> None:
    """Train windows; the plan (ISTHMUS_PLAN) says K = 1, and one inner step is one window."""
    settings = read_settings()
    torch.set_num_threads(1)
    model = Trained()
    record = Record(settings, model)
    local, rounds = open_sync(model, settings)

    def sync(_: int) -> dict[str, Any]:
        before = local.loop.rounds
        local.after_step(TOKENS_PER_STEP * settings.steps)
        return {"committed": local.loop.rounds > before, "alone": len(rounds.generation.regions) == 1}

    record.loop(sync)


if __name__ == "__main__":
    main()
