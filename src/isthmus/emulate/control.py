"""What launcher and delay line say to each other: JSON objects over a socket pair, with namespaces as descriptors.

The launcher sends the set-up, then requests one at a time; the line answers each. When the launcher is gone,
for whatever reason, the line reads the end of the stream and takes everything down.
"""

import array
import json
import os
import socket
from typing import Any

from isthmus.emulate.link import LinkSettings

__all__ = ["ask", "own_packages", "receive", "receive_descriptors", "send", "settings_from", "settings_to"]

_LIMIT_BYTES = 1 << 17
_DESCRIPTORS_A_MESSAGE = 200


def send(channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one message, and after it the descriptors, as the receiver of `message` expects them."""
    channel.send(json.dumps(message).encode())
    for start in range(0, len(descriptors), _DESCRIPTORS_A_MESSAGE):
        part = array.array("i", descriptors[start : start + _DESCRIPTORS_A_MESSAGE])
        channel.sendmsg([b"fds"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)])


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other end is gone."""
    try:
        raw = channel.recv(_LIMIT_BYTES)
    except ConnectionResetError:
        return None
    return json.loads(raw) if raw else None


def receive_descriptors(channel: socket.socket, number: int) -> list[int]:
    """The `number` descriptors that follow a message; they close on exec.

    Raises:
        EOFError: The other end is gone.
    """
    found: list[int] = []
    while len(found) < number:
        raw, ancillary, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(4 * _DESCRIPTORS_A_MESSAGE))
        if not raw:
            raise EOFError("the delay line ended while it was passing namespaces")
        for _, _, data in ancillary:
            part = array.array("i")
            part.frombytes(data[: len(data) - len(data) % part.itemsize])
            found += part
    for descriptor in found:
        os.set_inheritable(descriptor, False)
    return found


def ask(channel: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request and wait for its answer.

    Raises:
        EOFError: The delay line is gone.
    """
    try:
        send(channel, request)
        answer = receive(channel)
    except (BrokenPipeError, ConnectionResetError):
        answer = None
    if answer is None:
        raise EOFError("the delay line is gone")
    return answer


def settings_to(settings: LinkSettings) -> dict[str, Any]:
    """Settings as JSON."""
    return {name: getattr(settings, name) for name in LinkSettings.__slots__}


def settings_from(values: dict[str, Any]) -> LinkSettings:
    """Settings from JSON."""
    return LinkSettings(**values)


def own_packages(environment: dict[str, str]) -> dict[str, str]:
    """`environment` with this very package found first, wherever the caller imported it from."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    known = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(known)}
