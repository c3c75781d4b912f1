"""A message on its way: what its sender, or who asked for it, waits on."""

import threading
import time
from collections.abc import Callable

from isthmus.runtime.wan.frames import PeerLostError

__all__ = ["Ticket"]


class Ticket:
    """One message on its way out or in; `wait` returns when the peer has it (or when its bytes are here).

    Attributes:
        left_bytes: Not acknowledged yet (or not here yet).
        free: The outbox's way to have the buffer free within so many seconds; None for what comes in.
    """

    def __init__(self, what: str, size: int, timeout_s: float, moved_s: Callable[[], float]) -> None:
        """`moved_s()` is the monotonic time at which the link last carried something in this direction."""
        self.what, self.size = what, size
        self.left_bytes = size
        self._timeout_s, self._moved_s = timeout_s, moved_s
        self._event = threading.Event()
        self._error: Exception | None = None
        self._started_s = time.monotonic()
        self.free: Callable[[float], bool] | None = None

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the peer has acknowledged the whole message (or it came in).

        Raises:
            PeerLostError: Nothing moved on this link for the rail's time-out, `timeout_s` passed, or the peer went away.
            RailError: The link was aborted.
        """
        self._until(self._event.wait, timeout_s)

    def release(self, timeout_s: float | None = None) -> None:
        """Block until the message's buffer may be changed, which is before the peer has acknowledged it.

        What is under way is copied, at most what the streams hold in flight. For a message on its way in the same as `wait`.
        """
        self._until(self.free or self._event.wait, timeout_s)

    def finish(self, error: Exception | None = None) -> None:
        """Release the waiters; what came first stays."""
        if not self._event.is_set():
            self._error = self._error or error
            self._event.set()

    def _until(self, ready: Callable[[float], bool], timeout_s: float | None) -> None:
        started_s = time.monotonic()
        while not ready(self._patience_s(started_s, timeout_s)):
            now_s = time.monotonic()
            if timeout_s is not None and now_s >= started_s + timeout_s:
                raise PeerLostError(f"{self.what}: {self.left_bytes} of {self.size} bytes missing after {timeout_s:g} s")
            if now_s >= self._silent_until_s():
                raise PeerLostError(
                    f"{self.what}: the link was silent for {self._timeout_s:g} s with {self.left_bytes} of {self.size} "
                    "bytes missing"
                )
        if self._error is not None:
            raise self._error

    def _silent_until_s(self) -> float:
        return max(self._started_s, self._moved_s()) + self._timeout_s

    def _patience_s(self, started_s: float, timeout_s: float | None) -> float:
        until_s = self._silent_until_s()
        if timeout_s is not None:
            until_s = min(until_s, started_s + timeout_s)
        return max(0.0, until_s - time.monotonic())
