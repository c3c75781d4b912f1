"""The communication thread: one per rank, so that exchanges run beside the backward pass and in one order."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["Courier", "VoidError"]


class VoidError(Exception):
    """A job came to nothing, but this rank is in step with its peers: later jobs run. To be derived from."""


class Courier:
    """Runs jobs one after another on a thread of its own.

    After the first failure every later job is refused with the same error: a rank whose exchange failed has lost
    step with its peers, and a second error would hide the first. A `VoidError` is no failure.
    """

    def __init__(self, name: str = "isthmus-courier", inside: AbstractContextManager[None] | None = None) -> None:
        """`inside` is entered on the thread, around all jobs."""
        self._inside = inside or nullcontext()
        self._closed = False
        self._submitting = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        # A daemon, so that a rank whose peer is dead can still exit; every wait inside a job has a time limit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        """Queue `job`; its result or error arrives in the future.

        Raises:
            RuntimeError: After `close`: nobody would run it, and its future would never come.
        """
        future: Future[Any] = Future()
        with self._submitting:
            if self._closed:
                raise RuntimeError("isthmus: the communication thread has ended; this was used outside isthmus.join()")
            self._jobs.put((job, future))
        return future

    def raise_failure(self) -> None:
        """Raise the first failure of any job in the caller's thread."""
        if self.failure is not None:
            raise self.failure

    def close(self, timeout_s: float = 5.0) -> None:
        """Let the queued jobs end, for at most `timeout_s`, and stop."""
        with self._submitting:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with self._inside:
            self._work()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, future = entry
            if self.failure is not None:
                future.set_exception(self.failure)
                continue
            try:
                result = job()
            except VoidError as error:
                future.set_exception(error)
            except BaseException as error:  # whatever it is, the training thread must hear of it
                self.failure = error
                future.set_exception(error)
            else:
                future.set_result(result)
