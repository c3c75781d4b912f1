"""A newcomer's state over a rail: every member that has it sends a part, and the whole is proved by its hash.

On each rail the newcomer first says what it holds (16 bytes of hash), each donor answers with 40 bytes (hash, sizes), and the
first donor sends the record. The tensors' bytes, laid end to end, are cut into as many runs as there are donors. Nothing is
unpickled: the record is JSON, dtypes come from a list.

    answer    xxh3-128 of record and tensors 16s | bytes of the record u64 | bytes of the tensors u64 | 1: you hold it already u64
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
import xxhash

from isthmus.runtime.federation.states import State
from isthmus.runtime.hashing import ReplicaMismatchError, bytes_of
from isthmus.runtime.wan.frames import TAG_LIMIT, message_tag
from isthmus.runtime.wan.rail import Rail

__all__ = ["Received", "fetch_state", "send_state"]

KIND: Final = TAG_LIMIT - 8
_ASK, _ANSWER, _RECORD, _BODY = range(4)
_ANSWER_LAYOUT = struct.Struct("<16sQQQ")
RECORD_BYTES_MAX: Final = 1 << 26
STATE_BYTES_MAX: Final = 1 << 44
TENSORS_MAX: Final = 1 << 16
DONORS_MAX: Final = 16
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
}


@dataclass(frozen=True, slots=True)
class Received:
    """A state that came over one rail, and how many bytes of payload that took; 0 and `same` where it was held already."""

    state: State
    received_bytes: int
    same: bool


@dataclass(frozen=True, slots=True)
class _Packed:
    record: bytes
    tensors: tuple[torch.Tensor, ...]
    digest: bytes

    @property
    def size(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def send_state(rail: Rail, state: State, donors: Sequence[int], newcomers: Sequence[int]) -> int:
    """Serve `state` to every newcomer; returns the payload bytes sent once they are all there.

    Args:
        rail: Open rail.
        state: Equal on all donors; its tensors stay as they are until this returns.
        donors: Numbers of the regions that send, this one among them; equal everywhere.
        newcomers: Numbers of the regions that fetch.

    Raises:
        RailError: The link to a newcomer broke.
    """
    packed, donors = _pack(state), list(donors)[:DONORS_MAX]
    if rail.region not in donors:
        return 0
    sent, tickets = 0, []
    asked = {peer: bytearray(16) for peer in newcomers}
    for peer, ticket in [(peer, rail.receive(peer, _tag(_ASK), into)) for peer, into in asked.items()]:
        ticket.wait()
        same = bytes(asked[peer]) == packed.digest
        answer = _ANSWER_LAYOUT.pack(packed.digest, len(packed.record), packed.size, int(same))
        tickets.append(rail.send(peer, _tag(_ANSWER), answer))
        if same:
            continue
        if rail.region == donors[0]:
            tickets.append(rail.send(peer, _tag(_RECORD), packed.record))
            sent += len(packed.record)
        for number, view in _runs(packed.tensors, donors.index(rail.region), len(donors)):
            tickets.append(rail.send(peer, _tag(_BODY, rail.region, number), view))
            sent += view.nbytes
    for ticket in tickets:
        ticket.wait()
    return sent


def fetch_state(rail: Rail, own: State | None, donors: Sequence[int]) -> Received:
    """The donors' state; `own` is taken where it is the same to the last bit.

    Raises:
        RailError: A donor was lost.
        ReplicaMismatchError: The donors do not hold the same state, or what arrived is not what they hold.
    """
    held, donors = (_pack(own) if own is not None else None), list(donors)[:DONORS_MAX]
    ask = held.digest if held else bytes(16)
    sends = [rail.send(donor, _tag(_ASK), ask) for donor in donors]
    answers = {donor: bytearray(_ANSWER_LAYOUT.size) for donor in donors}
    for ticket in [rail.receive(donor, _tag(_ANSWER), into) for donor, into in answers.items()] + sends:
        ticket.wait()
    if len({bytes(answer) for answer in answers.values()}) > 1:
        listed = ", ".join(f"{rail.names[donor]} {bytes(answer[:8]).hex()}" for donor, answer in answers.items())
        raise ReplicaMismatchError(f"the members do not hold the same state: {listed}")
    digest, record_bytes, body_bytes, same = _ANSWER_LAYOUT.unpack(answers[donors[0]])
    if same and own is not None:
        return Received(own, 0, True)
    if record_bytes > RECORD_BYTES_MAX or body_bytes > STATE_BYTES_MAX:
        raise ReplicaMismatchError(f"a state of {record_bytes} + {body_bytes} bytes was announced; that is no state")
    record = bytearray(record_bytes)
    rail.receive(donors[0], _tag(_RECORD), record).wait()
    state = _unpack(bytes(record), body_bytes)
    tensors = tuple(state.tensors.values())
    tickets = [
        rail.receive(donor, _tag(_BODY, donor, number), view)
        for place, donor in enumerate(donors)
        for number, view in _runs(tensors, place, len(donors))
    ]
    for ticket in tickets:
        ticket.wait()
    if _digest(bytes(record), tensors) != digest:
        raise ReplicaMismatchError(f"the state that arrived does not have the hash {digest.hex()} of what was sent")
    return Received(state, record_bytes + body_bytes, False)


def _pack(state: State) -> _Packed:
    tensors = tuple(state.tensors.values())
    for name, tensor in state.tensors.items():
        if str(tensor.dtype) not in _DTYPES or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise TypeError(
                f"state {name!r}: {tensor.dtype} on {tensor.device.type} with strides {tensor.stride()} is not carried"
            )
    if len(tensors) > TENSORS_MAX:
        raise ValueError(f"a state of {len(tensors)} tensors; {TENSORS_MAX} are carried")
    layout = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in state.tensors.items()]
    record = json.dumps({"record": dict(state.record), "tensors": layout}, separators=(",", ":")).encode()
    return _Packed(record, tensors, _digest(record, tensors))


def _unpack(record: bytes, body_bytes: int) -> State:
    try:
        read: dict[str, Any] = json.loads(record)
        shapes = {name: (_DTYPES[dtype], tuple(int(size) for size in shape)) for name, dtype, shape in read["tensors"]}
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in shapes.values()]
        if min(sizes, default=0) < 0 or sum(sizes) != body_bytes or len(sizes) > TENSORS_MAX:
            raise ValueError(f"{sum(sizes)} bytes of tensors in a body of {body_bytes}")
        given: Mapping[str, Any] = read["record"]
        return State(given, {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in shapes.items()})
    except (ValueError, KeyError, TypeError) as error:
        raise ReplicaMismatchError(f"the record of a state cannot be read: {error!r}") from error


def _digest(record: bytes, tensors: Sequence[torch.Tensor]) -> bytes:
    digest = xxhash.xxh3_128(record)
    for tensor in tensors:
        if tensor.numel():
            digest.update(bytes_of(tensor))
    return digest.digest()


def _runs(tensors: Sequence[torch.Tensor], place: int, places: int) -> list[tuple[int, memoryview]]:
    """The bytes that donor `place` of `places` sends: (number of the tensor, its part that lies in the donor's run)."""
    total = sum(tensor.nbytes for tensor in tensors)
    first, last = total * place // places, total * (place + 1) // places
    found: list[tuple[int, memoryview]] = []
    offset = 0
    for number, tensor in enumerate(tensors):
        begin, end = max(first - offset, 0), min(last - offset, tensor.nbytes)
        if begin < end:
            found.append((number, bytes_of(tensor)[begin:end]))
        offset += tensor.nbytes
    return found


def _tag(what: int, donor: int = 0, number: int = 0) -> int:
    return message_tag(KIND + what, donor, 0, number)
