"""Whether another region can be reached: TCP connections to the addresses of its ranks, closed again without a word."""

import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

__all__ = ["Probe", "Reach", "probe"]

Reach = Literal["open", "refused", "silent"]
Probe = Callable[[Sequence[tuple[str, int]], float], Reach]
AGAIN_S = 0.2


def probe(addresses: Sequence[tuple[str, int]], timeout_s: float = 1.0) -> Reach:
    """`open`: every address takes connections. `refused`: the host of one answered that nobody listens there any more: that
    rank's process is gone, and with it the region. `silent`: some address did not answer in time, as when a link is cut.

    A process that was stopped is `open`, for its kernel answers. A lost packet is made up for by a second and third try.
    """
    deadline_s = time.monotonic() + timeout_s
    found: list[Reach] = []
    with selectors.DefaultSelector() as selector:
        try:
            waiting = set(range(len(addresses)))
            again_s = 0.0
            while waiting and (now_s := time.monotonic()) < deadline_s:
                if now_s >= again_s:
                    found += _begin(addresses, waiting, selector)
                    again_s = now_s + AGAIN_S
                for key, _ in selector.select(max(0.0, min(deadline_s, again_s) - time.monotonic())):
                    number, error = key.data, key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    if error == 0:
                        waiting.discard(number)
                    elif error == errno.ECONNREFUSED:
                        return "refused"
            return "refused" if "refused" in found else ("silent" if waiting else "open")
        finally:
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]


def _begin(addresses: Sequence[tuple[str, int]], waiting: set[int], selector: selectors.BaseSelector) -> list[Reach]:
    refused: list[Reach] = []
    for number in waiting:
        host, port = addresses[number]
        with suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            error = sock.connect_ex(address)
            if error in (0, errno.EINPROGRESS):
                selector.register(sock, selectors.EVENT_WRITE, number)
                continue
            sock.close()
            if error == errno.ECONNREFUSED:
                refused.append("refused")
    return refused
