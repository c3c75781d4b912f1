"""A region of one rank that trains nothing: each round adds every region's numbers to a vector that all hold.

Started by the tests with one JSON argument; writes one JSON line a commit to its log. Not a test itself.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isthmus.plan import Survival
from isthmus.runtime.environment import RankEnvironment, read_members
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.membership import Membership
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.rounds import Rounds
from isthmus.runtime.federation.states import Attempt, Rails, Rejoined, State
from isthmus.runtime.federation.store import open_store
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import federation_id, message_tag
from isthmus.runtime.wan.rail import RailOptions
from isthmus.runtime.world import World


class Member:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order, self.region = order, order["region"]
        self.members = read_members(order["members"])
        self.index = self.members.index(self.region)
        self.vector = torch.zeros(order["elements"], dtype=torch.float32)
        self.applied: list[int] = []
        self.log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **what: Any) -> None:
        os.write(self.log, json.dumps({"at_s": time.time(), "region": self.region, "pid": os.getpid(), **what}).encode() + b"\n")

    def attempt(self, generation: Generation, rails: Rails) -> Attempt:
        number = len(self.applied)
        mine = torch.full_like(self.vector, float(self.index + 1 + number))
        total = torch.zeros_like(self.vector)
        tag = message_tag(1, number, 0, 0)
        found = {self.region: mine}
        tickets = []
        for rail in rails.values():
            for peer, name in enumerate(rail.names):
                if peer != rail.region:
                    found[name] = torch.empty_like(mine)
                    tickets += [rail.receive(peer, tag, found[name]), rail.send(peer, tag, mine)]
        self.fault("inside", number)
        for ticket in tickets:
            ticket.wait()
        for name in generation.regions:
            total += found[name]
        self.fault("voting", number)
        if self.order.get("unseen", {}).get(str(number), 0):  # what it added up was sent otherwise, and all agree on the sum
            self.order["unseen"][str(number)] -= 1
            next(iter(rails.values())).note_added(mine)
        digest = fingerprint([self.vector + total])
        flip = self.order.get("flip", {}).get(str(number), 0)
        if flip:
            self.order["flip"][str(number)] -= 1
            digest ^= 1
        return Attempt(digest, total)

    def fault(self, where: str, number: int) -> None:
        if self.order.get("fault") == [where, number]:
            self.write(kind="fault")
            os.kill(os.getpid(), getattr(signal, self.order["signal"]))

    def commit(self, attempt: Attempt) -> None:
        self.vector += attempt.payload
        self.applied.append(len(self.applied))

    def export_state(self, rail: int) -> State:
        return State({"applied": self.applied}, {"vector": self.vector.clone()})

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        (state,) = parts.values()
        self.vector, self.applied = state.tensors["vector"].clone(), list(state.record["applied"])
        self.write(kind="adopted", why=rejoined.why, bytes=rejoined.fetched_bytes, discarded=rejoined.tokens_discarded)

    def run(self) -> None:
        survival = Survival(**self.order["survival"])
        environment = RankEnvironment(
            rank=0,
            world_size=1,
            master=None,
            region=self.region,
            region_index=self.index,
            members=self.members,
            plan_path=None,
            metrics_dir=None,
            blocks=None,
        )
        door = Door(self.members.regions[self.index].rails[0], federation_id(self.members), self.index)
        opener = RailOpener(environment, door, 2, RailOptions(detect_s=survival.detect_s))
        membership = None
        if self.order["store"]:
            store = open_store(self.order["store"], patience_s=survival.detect_s)
            membership = Membership(store, self.region, self.members, survival, terms={"elements": str(self.order["elements"])})
        rounds = Rounds(environment, World(), membership, opener, survival, self)
        try:
            rounds.open()
            self.write(kind="open", generation=rounds.generation.number, round=rounds.round)
            while rounds.round < self.order["rounds"]:
                time.sleep(self.order["step_s"])
                done = rounds.run(self.attempt, 100 * (self.index + 1), self.commit)
                self.write(
                    kind="round",
                    round=done.round,
                    generation=done.generation.number,
                    regions=done.generation.regions,
                    branch=done.generation.branch,
                    tokens=done.tokens,
                    total=rounds.tokens,
                    attempts=done.attempts,
                    lost_s=done.lost_s,
                    rejoined=done.rejoined.why if done.rejoined else None,
                    hash=f"{fingerprint([self.vector]):016x}",
                )
            rounds.close()
            self.write(kind="end", round=rounds.round, total=rounds.tokens, hash=f"{fingerprint([self.vector]):016x}")
        except BaseException as error:
            self.write(kind="error", error=f"{type(error).__name__}: {error}")
            rounds.abandon()
            raise
        finally:
            door.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    order = json.loads(Path(sys.argv[1]).read_text())
    Member(order).run()
