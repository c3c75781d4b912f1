"""A region of one rank that takes local steps on numbers; started by test_survival.py with one JSON argument. Not a test."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from isthmus.plan import Outer, Strategy, Survival
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import RankEnvironment, read_members
from isthmus.runtime.federation.membership import Membership
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.rounds import Rounds
from isthmus.runtime.federation.store import open_store
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.link import RoundsLink
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import federation_id
from isthmus.runtime.wan.rail import RailOptions
from isthmus.runtime.world import World


def train(order: dict[str, Any], environment: RankEnvironment, rounds: Rounds, courier: Courier) -> dict[str, Any]:
    rule = Strategy(name="t", kind="local-steps", outer=Outer(lr=0.8, momentum=0.5, nesterov=True), **order["strategy"])
    held = [torch.nn.Parameter(torch.zeros(size)) for size in order["sizes"]]
    sync = LocalSync(held, RoundsLink(environment, None, courier, rounds, rule), rule, order["grace_s"])
    rounds.keeper = sync
    courier.submit(rounds.open).result()
    sync.settle()
    own = 0
    while sync.steps < order["steps"] and own < order.get("own_steps", 10**9):
        time.sleep(order["step_s"])
        with torch.no_grad():
            for number, parameter in enumerate(held):
                parameter.mul_(0.99).add_(0.01 * (environment.region_index + 1 + number))
        sync.after_step(10)
        own += 1
        line = {"steps": sync.steps, "rounds": sync.loop.rounds, "regions": rounds.generation.regions, "at_s": time.time()}
        with open(order["log"], "a") as log:
            log.write(json.dumps(line) + "\n")
    sync.flush()
    courier.submit(rounds.close).result()
    return {
        "hash": f"{fingerprint(held):016x}",
        "own": own,
        "counted": sync.loop.counted_tokens,
        "discarded": sync.discarded_tokens,
        "fetched": sync.rejoined.fetched_bytes if sync.rejoined else 0,
        "late": sync.windows.late_rounds if sync.windows else 0,
    }


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    members = read_members(order["members"])
    index, survival = members.index(order["region"]), Survival(**order["survival"])
    place = {"rank": 0, "world_size": 1, "master": None, "region": order["region"], "region_index": index, "members": members}
    environment = RankEnvironment(**place, plan_path=None, metrics_dir=None, blocks=None)
    door = Door(members.regions[index].rails[0], federation_id(members), index)
    opener = RailOpener(environment, door, 2, RailOptions(detect_s=survival.detect_s))
    store = open_store(order["store"], patience_s=survival.detect_s)
    membership = Membership(store, order["region"], members, survival, terms={})
    rounds, courier = Rounds(environment, World(), membership, opener, survival), Courier()
    try:
        ended = train(order, environment, rounds, courier)
        with open(order["log"], "a") as log:
            log.write(json.dumps(ended) + "\n")
    finally:
        courier.close()
        rounds.abandon()
        door.close()


if __name__ == "__main__":
    main()
    os._exit(0)
