"""Activations and their gradients between regions: asked for early, sent in the background, memory bounded.

A boundary is the place between two chunks: boundary b between chunk b and b + 1. A region posts its receives in the order it
will use them, `window` at a time, so that messages go from the socket into their place and none has to be kept unasked for.
"""

import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from isthmus.errors import InputError
from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes
from isthmus.runtime.collectives.exchange import Buffers
from isthmus.runtime.collectives.gather import gather
from isthmus.runtime.pipeline.orders import Op
from isthmus.runtime.wan.frames import PeerLostError, message_tag
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["Mail"]

FORWARD, BACKWARD, SHAPE, NUMBER, WHOLE, WATCH = range(6)
_FLOW = 1 << 62  # one flow for all activations: the one that is needed first goes first
_SHAPE = struct.Struct("<16q")
_DTYPES = {name: number for number, name in enumerate((torch.float32, torch.int64, torch.float64, torch.int32, torch.bool))}
_SLICE_S = 0.1
_GRACE_S = 8.0


@dataclass(slots=True)
class _Expected:
    tensor: torch.Tensor
    data: torch.Tensor
    ticket: Ticket


@dataclass(slots=True)
class Mail:
    """One rank's letters to and from the same rank of other regions.

    Attributes:
        rail: Open rail.
        chunks: C of the schedule; chunk c is at region c mod R.
        codec: Of activations and gradients; everything else goes as it is.
        crossing: False: nothing is sent, and each message asked for is the last one of its kind again (off blocks).
        waited_s: Time spent waiting for messages so far.
    """

    rail: Rail
    chunks: int
    codec: CodecName
    crossing: bool = True
    waited_s: float = 0.0
    _step: int = -1
    _wholes: int = 0
    _numbers: int = 0
    _window: int = 1
    _shapes: dict[int, torch.Size] = field(default_factory=dict)
    _known: dict[tuple[object, ...], dict[int, torch.Size]] = field(default_factory=dict)
    _to_post: deque[Op] = field(default_factory=deque)
    _posted: dict[Op, _Expected] = field(default_factory=dict)
    _out: deque[tuple[Ticket, torch.Tensor, bool]] = field(default_factory=deque)
    _last: dict[tuple[bool, int], torch.Tensor] = field(default_factory=dict)
    _buffers: Buffers = field(default_factory=Buffers)
    _watch: dict[int, Ticket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Never sent: such a receive ends only when its link does, and so tells which region went first.
        for peer in range(self.rail.regions):
            if peer != self.rail.region:
                self._watch[peer] = self.rail.receive(peer, message_tag(0, 0, WATCH, 0), bytearray(8))

    def begin(self, key: tuple[object, ...], ops: Sequence[Op], window: int) -> None:
        """Begin a step that runs `ops`, and ask for the first `window` messages.

        Args:
            key: What the shapes of all messages follow from, equal in all regions: where it is new, shapes go along.
            ops: The region's order.
            window: Messages asked for ahead of their use; so many also may be on their way out each way.
        """
        self._shapes = self._known.setdefault(key, {})
        self._step, self._window = self._step + 1, window
        if self.crossing:
            self._to_post.extend(op for op in ops if self._source(op) is not None)
            self._post()

    def take(self, op: Op) -> torch.Tensor:
        """What `op` needs: activations of the chunk before it, or gradients of those it sent; float32, its own memory."""
        boundary = self._boundary(op)
        if not self.crossing:
            if (op.backward, boundary) not in self._last:
                raise InputError("ISTHMUS_BLOCKS", "an off block comes first", "a pipeline needs one step to learn its shapes")
            return self._last[op.backward, boundary]
        if op not in self._posted:  # its shape was not known yet: from our own activations by now, or from the sender's word
            if boundary not in self._shapes:
                self._learn_shape(boundary)
            self._post()
        expected = self._posted.pop(op)
        self.wait(expected.ticket)
        if self.codec != "none":
            decode(self.codec, expected.data, expected.tensor.view(-1))
            self._buffers.give(expected.data)
        self._post()
        self._last[op.backward, boundary] = expected.tensor
        return expected.tensor

    def send(self, op: Op, tensor: torch.Tensor) -> None:
        """Send what `op` made on to whom it concerns: activations to the next chunk, gradients to the one before.

        Raises:
            InputError: It is not a float32 tensor.
        """
        if not self.crossing:
            return
        peer = self._peer(op.chunk + (-1 if op.backward else 1))
        boundary = op.chunk - 1 if op.backward else op.chunk
        if not op.backward and boundary not in self._shapes:
            self._shapes[boundary] = tensor.shape
            self._put(peer, message_tag(boundary, self._step, SHAPE, 0), _described(tensor), None)
        flat = tensor.contiguous().view(-1)
        pooled = self.codec != "none"
        data = flat
        if pooled:
            data = self._buffers.take(encoded_bytes(self.codec, flat.numel()))
            encode(self.codec, flat, data)
        self._put(peer, self._tag(boundary, op), data, _FLOW, pooled=pooled)

    def largest_bytes(self) -> int:
        """Bytes of the largest message of activations that this region took or sent in the last step."""
        return max((encoded_bytes(self.codec, shape.numel()) for shape in self._shapes.values()), default=0)

    def end(self) -> None:
        """End the step: everything asked for has come."""
        assert not self._posted, f"{len(self._posted)} messages asked for and not used"
        assert not self._to_post, f"{len(self._to_post)} messages never asked for"
        self._reap(0)

    def announce(self, number: float, peers: Sequence[int] | None = None) -> int:
        """Send a number to all other regions (or `peers`); the slot by which they `hear` it."""
        slot = self._next_number()
        if self.crossing:
            for peer in self._watch if peers is None else peers:
                self._put(peer, message_tag(0, slot, NUMBER, 0), torch.tensor([number], dtype=torch.float64), None)
        return slot

    def ask(self, peer: int) -> tuple[torch.Tensor, Ticket] | None:
        """Ask for the number that region `peer` announces at this place of the program; None while not crossing."""
        slot = self._next_number()
        if not self.crossing:
            return None
        into = torch.empty(1, dtype=torch.float64)
        return into, self._receive(peer, message_tag(0, slot, NUMBER, 0), into)

    def hear(self, asked: tuple[torch.Tensor, Ticket]) -> float:
        """The number asked for."""
        self.wait(asked[1])
        return float(asked[0])

    def everyone(self, numbers: Sequence[float]) -> list[list[float]]:
        """`numbers` of every region, in their order, as float64; the same list everywhere."""
        mine = torch.tensor(list(numbers), dtype=torch.float64)
        slot = self._next_number()
        if not self.crossing:
            return [mine.tolist()] * self.rail.regions
        try:
            return [found.tolist() for found in gather(self.rail, mine, message_tag(0, slot, NUMBER, 0))]
        except PeerLostError as error:
            self._name_the_lost(error)
            raise

    def hand(self, tensor: torch.Tensor | None, source: int, targets: Sequence[int]) -> torch.Tensor | None:
        """A whole tensor from region `source` to `targets`, with its shape, unencoded; None where this region is neither."""
        slot = self._wholes
        self._wholes += 1
        shape_tag, tag = message_tag(0, slot, SHAPE, 1), message_tag(0, slot, WHOLE, 0)
        if self.rail.region == source:
            assert tensor is not None, "the source of a tensor has none"
            flat = tensor.detach().contiguous()
            for target in targets:
                if target != source:
                    self._put(target, shape_tag, _described(tensor), None)
                    self._put(target, tag, flat.view(-1).view(torch.uint8), None)
            self._reap(0)
            return tensor
        if self.rail.region not in targets:
            return None
        shape, dtype = self._shape_from(source, shape_tag)
        into = torch.empty(shape, dtype=dtype)
        if into.numel():
            self.wait(self._receive(source, tag, into))
        return into

    def wait(self, ticket: Ticket) -> None:
        """Wait for `ticket`; where any region is lost meanwhile, say which.

        Raises:
            PeerLostError: Names the region that was lost first, be it a neighbour or not.
        """
        if ticket.done:
            ticket.wait()
            return
        begun_s = time.monotonic()
        try:
            self._wait_in_slices(ticket, begun_s)
        except PeerLostError as error:
            self._name_the_lost(error)
            raise
        finally:
            self.waited_s += time.monotonic() - begun_s

    def _wait_in_slices(self, ticket: Ticket, begun_s: float) -> None:
        while time.monotonic() - begun_s < self.rail.timeout_s:
            try:
                ticket.wait(_SLICE_S)
                return
            except PeerLostError:
                if ticket.done:  # perhaps just after the slice ended: its own answer counts
                    ticket.wait()
                    return
                for watch in self._watch.values():
                    if watch.done and not ticket.done:
                        watch.wait()  # raises: some region is gone, so this step cannot end
        ticket.wait()

    def _name_the_lost(self, error: PeerLostError) -> None:
        """Raise an error that names every region whose link is gone, those that died before those that then left."""
        until_s = time.monotonic() + _GRACE_S
        while not (found := self._gone()) or all(text.endswith("(left)") for text in found):
            if time.monotonic() > until_s or len(found) == len(self._watch):
                break
            time.sleep(_SLICE_S)  # who left in good order did so because of another, whose silence takes its time to be sure
        if found:
            names = ", ".join(name[1:] for name in sorted(found))
            raise PeerLostError(f"a pipeline cannot go on without region {names}: {error}") from error

    def _gone(self) -> list[str]:
        """Regions whose link is gone, each with a digit before it that sorts those that left behind those that died."""
        found: list[str] = []
        for peer, watch in self._watch.items():
            if watch.done:
                try:
                    watch.wait()
                except Exception as reason:
                    left = "closed the link" in str(reason)
                    found.append(f"{int(left)}{self.rail.names[peer]}{' (left)' if left else ''}")
        return found

    def _post(self) -> None:
        while self._to_post and len(self._posted) < self._window:
            op = self._to_post[0]
            boundary = self._boundary(op)
            if boundary not in self._shapes:
                return
            tensor = torch.empty(self._shapes[boundary], dtype=torch.float32)
            data = tensor.view(-1)
            if self.codec != "none":
                data = self._buffers.take(encoded_bytes(self.codec, tensor.numel()))
            peer = self._source(op)
            assert peer is not None
            self._posted[op] = _Expected(tensor, data, self._receive(peer, self._tag(boundary, op), data))
            self._to_post.popleft()

    def _learn_shape(self, boundary: int) -> None:
        tag = message_tag(boundary, self._step, SHAPE, 0)
        shape, dtype = self._shape_from(self._peer(boundary), tag)
        assert dtype == torch.float32, dtype
        self._shapes[boundary] = shape

    def _shape_from(self, peer: int, tag: int) -> tuple[torch.Size, torch.dtype]:
        into = bytearray(_SHAPE.size)
        self.wait(self._receive(peer, tag, into))
        dtype, dims, *sizes = _SHAPE.unpack(into)
        return torch.Size(sizes[:dims]), list(_DTYPES)[dtype]

    def _receive(self, peer: int, tag: int, into: torch.Tensor | bytearray) -> Ticket:
        try:
            return self.rail.receive(peer, tag, into)
        except PeerLostError as error:
            self._name_the_lost(error)
            raise

    def _put(self, peer: int, tag: int, data: torch.Tensor, flow: int | None, *, pooled: bool = False) -> None:
        if data.numel():
            self._out.append((self.rail.send(peer, tag, data, flow), data, pooled))
        self._reap(2 * self._window + 8)

    def _reap(self, most: int) -> None:
        """Take back the buffers of what is sent; wait until at most `most` are under way."""
        while self._out and (len(self._out) > most or self._out[0][0].done):
            ticket, data, pooled = self._out.popleft()
            self.wait(ticket)
            if pooled:
                self._buffers.give(data)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _tag(self, boundary: int, op: Op) -> int:
        return message_tag(boundary, self._step, BACKWARD if op.backward else FORWARD, op.micro)

    def _boundary(self, op: Op) -> int:
        """Where the message that `op` needs crosses."""
        return op.chunk if op.backward else op.chunk - 1

    def _source(self, op: Op) -> int | None:
        """The region that sends what `op` needs; None for the two ends of the model."""
        chunk = op.chunk + (1 if op.backward else -1)
        return self._peer(chunk) if 0 <= chunk < self.chunks else None

    def _peer(self, chunk: int) -> int:
        return chunk % self.rail.regions


def _described(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _DTYPES or tensor.dim() > 14:
        raise InputError("model", f"a block returned {tensor.dtype} with {tensor.dim()} dimensions", "float32 crosses regions")
    padded = [_DTYPES[tensor.dtype], tensor.dim(), *tensor.shape, *[0] * (14 - tensor.dim())]
    return torch.frombuffer(bytearray(_SHAPE.pack(*padded)), dtype=torch.uint8)
