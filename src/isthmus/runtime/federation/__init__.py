"""Who takes part, and what they agreed on: generations of regions, a commit vote a round, and a store to regroup through.

A strategy gives each of its rounds (one outer sync, one every-step exchange) to `Rounds.run`, on the communication thread of
every rank and in the same order everywhere:

    store = open_store(environment.coordinator, identity.calling if identity else None, patience_s=survival.detect_s)
    membership = Membership(store, region, members, survival, terms={...})      # rank 0 of the region only; else None
    rounds = Rounds(environment, world, membership, RailOpener(environment, door, streams, options), survival, keeper)
    rounds.open()                                     # waits for the regions; newcomers fetch the state (keeper)
    committed = rounds.run(attempt, tokens, commit)   # returns when every region of the generation holds the result
    rounds.close()                                    # or abandon() after an error

`attempt(generation, rails) -> Attempt(digest, payload)` works on copies of retained inputs and may be called again in a later
generation with other regions; `commit(attempt)` installs the result (parameters, momentum, error feedback) and is called at most
once a round. Where `committed.rejoined` is set, the keeper adopted the others' state instead and `commit` was not called. On a
first start all regions but the first fetch the first one's state: that is how they begin from equal parameters. After a commit
with `rounds.newcomers` set, `rounds.welcome()` (a job of its own, on every rank) lets them in at once; else the next `run` does.
Without a membership a lost region raises `PeerLostError`, as unequal results raise `ReplicaMismatchError`.

The names load on first use; the store, the coordinator and `Membership` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.runtime.federation.generation import Generation
    from isthmus.runtime.federation.membership import Membership
    from isthmus.runtime.federation.opening import RailOpener
    from isthmus.runtime.federation.rounds import Rounds
    from isthmus.runtime.federation.states import Attempt, Committed, Rejoined, State, StateKeeper
    from isthmus.runtime.federation.store import Store, open_store

_HOMES = {
    "Attempt": "states",
    "Committed": "states",
    "Generation": "generation",
    "Membership": "membership",
    "RailOpener": "opening",
    "Rejoined": "states",
    "Rounds": "rounds",
    "State": "states",
    "StateKeeper": "states",
    "Store": "store",
    "open_store": "store",
}

__all__ = [
    "Attempt",
    "Committed",
    "Generation",
    "Membership",
    "RailOpener",
    "Rejoined",
    "Rounds",
    "State",
    "StateKeeper",
    "Store",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'isthmus.runtime.federation' has no attribute {name!r}")
    return getattr(import_module(f"isthmus.runtime.federation.{_HOMES[name]}"), name)
