"""The ranks of one region among themselves: small numbers, the leader's word, and the alarm that stops a round on all of them."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.world import World, gather_numbers

__all__ = ["Alarm", "Ranks"]

T = TypeVar("T")
PATIENCE_S: Final = 1.0
ALARM_S: Final = 0.1
DONE, FAILED = 1, 2


class Ranks:
    """This region's ranks, over its communication group; used on the communication thread only."""

    def __init__(self, environment: RankEnvironment, world: World) -> None:
        self.rank, self.size = environment.rank, environment.world_size
        self._group = world.comm_group if self.size > 1 else None

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the region with the store."""
        return self.rank == 0

    def gather(self, number: int) -> list[int]:
        """One unsigned 64-bit number of every rank, in their order."""
        return [number] if self._group is None else gather_numbers(self._group, number, self.size)

    def led(self, job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the leader's `job` returns (JSON), on every rank; its error is raised on every rank.

        However long it takes: the leader tells the others every second that it is still at it, so no group runs out of time.
        """
        if self._group is None:
            return job()
        if not self.leads:
            return self._follow()
        future: Future[dict[str, Any]] = Future()
        threading.Thread(target=_run, args=(job, future), name="isthmus-leader", daemon=True).start()
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(PATIENCE_S):
            self._share([0, 0])
        error = future.exception()
        answer = {"error": f"the region's leader failed: {error}"} if error is not None else future.result()
        text = json.dumps(answer).encode()
        self._share([DONE if error is None else FAILED, len(text)])
        self._share(list(text))
        return future.result()

    def _follow(self) -> dict[str, Any]:
        while True:
            state, size = self._share([0, 0])
            if state:
                break
        answer = json.loads(bytes(self._share([0] * size)))
        if state == FAILED:
            raise RuntimeError(answer["error"])
        return answer

    def _share(self, numbers: list[int]) -> list[int]:
        assert self._group is not None
        values = torch.tensor(numbers, dtype=torch.int64)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([values], options).wait()
        return values.tolist()


def _run(job: Callable[[], T], future: "Future[T]") -> None:
    try:
        future.set_result(job())
    except BaseException as error:
        future.set_exception(error)


class Alarm:
    """One bit a generation that any rank sets and that every rank hears within a tenth of a second, whatever it waits for.

    It lies in the region's torch store; a rank on its own has none to wake but itself.
    """

    def __init__(self, size: int, heard: Callable[[int, str], None]) -> None:
        self._heard = heard
        self._number = -1
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._store: c10d.Store | None = None
        self._thread: threading.Thread | None = None
        if size > 1 and dist.is_initialized():
            # A clone, so that looking never waits behind another call of this process on the store.
            store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
            self._store = _clone(store)
            self._thread = threading.Thread(target=self._listen, name="isthmus-alarm", daemon=True)
            self._thread.start()

    def arm(self, number: int) -> None:
        """Listen for the alarm of generation `number` from now on."""
        with self._guard:
            self._number = number

    def ring(self, number: int, why: str) -> None:
        """Stop the round of generation `number` on every rank of the region."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(_key(number), why[:400])
        self._tell(number, why)

    def close(self) -> None:
        """Listen no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _listen(self) -> None:
        assert self._store is not None
        while not self._stopping.wait(ALARM_S):
            with self._guard:
                number = self._number
            try:
                if number >= 0 and self._store.check([_key(number)]):
                    self._tell(number, self._store.get(_key(number)).decode())
            except RuntimeError:  # the store's server has ended, and with it the region
                time.sleep(ALARM_S)

    def _tell(self, number: int, why: str) -> None:
        with self._guard:
            if number != self._number:
                return
            self._number = -1
        self._heard(number, why)


def _clone(store: Any) -> Any:
    """A connection of its own for the alarm's thread; stores without one (in memory, or a file) are safe to share."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


def _key(number: int) -> str:
    return f"isthmus/abort/{number}"
