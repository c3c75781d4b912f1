"""TLS 1.3 between regions, both sides with a certificate: who a region is, and a stream inside TLS.

The federation's own authority (`isthmus keys`) signs one certificate a region. It names the region as the URI
`isthmus://region/<name>`; the coordinator's is `isthmus://coordinator`. Nothing else is looked at: addresses may change.

What this leaves out: revocation (make new keys), and the kernel's TLS, which Python 3.11 cannot switch on.
"""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import unquote

from isthmus.keys import region_uri
from isthmus.runtime.wan.frames import StrangerError
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.streams import Kernel, PlainStream

__all__ = ["TlsStream", "greet", "peer_region", "reason", "uris"]

_REGION: Final = region_uri("")
RECORD_BYTES: Final = 1 << 14
SEALED_BYTES: Final = RECORD_BYTES + 256 + 5  # the most that a record takes on the wire (RFC 8446, 5.1 and 5.2)
RECORD_HEADER_BYTES: Final = 5
_HANDSHAKE: Final = b"\x16"  # the type of a handshake's first record (RFC 8446, 5.1)
# What goes through OpenSSL's memory at a time stays in a core's own cache: with 1 MiB the way runs at half the speed.
READ_BYTES: Final = 1 << 16
JOIN_BYTES: Final = 1 << 12
# AES-GCM may seal 2^24.5 full records under one key (RFC 8446, 5.5); Python cannot renew a key, so the stream is renewed.
SENT_BYTES_MAX: Final = RECORD_BYTES << 23


def uris(certificate: dict | None) -> list[str]:
    """The URIs by which a decoded certificate names its owner."""
    names = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI"]


def peer_region(stream: "TlsStream", who: str) -> str:
    """The region whose certificate the other end of `stream` holds.

    Raises:
        StrangerError: It is no region's.
    """
    found = uris(stream.certificate)
    if len(found) != 1 or not found[0].startswith(_REGION):
        raise StrangerError(f"{who} holds a certificate of {', '.join(found) or 'nobody'}, not of a region")
    return unquote(found[0].removeprefix(_REGION))


def greet(wire: PlainStream, identity: Identity, *, calling: bool, who: str) -> "TlsStream":
    """Shake hands over `wire`; its time-outs are the caller's.

    Raises:
        StrangerError: The other end does not speak TLS, or its certificate (or ours, to it) is not good.
        OSError: The connection broke.
    """
    stream = TlsStream(wire, identity, calling=calling, who=who)
    try:
        stream.shake_hands()
    except BaseException as error:
        stream.forget()
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            raise ConnectionResetError(f"{who} ended the connection inside the TLS handshake") from error
        if isinstance(error, TimeoutError):
            raise TimeoutError("it said too little for too long") from error
        if isinstance(error, ssl.SSLError):
            raise StrangerError(f"{who}: {reason(error)}") from error
        raise
    return stream


_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_TOO_SMALL", "UNEXPECTED_MESSAGE"}
)


def reason(error: ssl.SSLError) -> str:
    """What went wrong, in words that say which side to mend."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not good here: {error.verify_message}; "
            "all regions need certificates of one `isthmus keys` folder"
        )
    if error.reason in _NOT_TLS:
        return f"it does not speak TLS ({error.reason}); every rank of the run needs keys, or none does"
    if "ALERT" in (error.reason or ""):
        return f"it refuses our certificate ({error.reason}); all regions need certificates of one `isthmus keys` folder"
    return f"TLS failed ({error.reason or error})"


class TlsStream:
    """TLS over one TCP stream, in two sessions, one for each way, both opened by the caller: its own to the other end first.

    OpenSSL's connection object is not safe for two threads. With one session a way the sender and the receiver have one each and
    never wait for each other. What is sent OpenSSL hands to the kernel itself; what comes is read in `READ_BYTES` and opened in
    memory, so that Python runs once for so much and not once a packet.

    Both sessions have a whole handshake, with the certificates of both ends, which must be the same. The first thing that each
    end says is by which handshake the other way was opened: nobody in between can join sessions of two streams.
    """

    def __init__(self, wire: PlainStream, identity: Identity, *, calling: bool, who: str) -> None:
        self._wire, self._calling, self._who = wire, calling, who
        context = identity.calling if calling else identity.answering
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._opener = context.wrap_bio(self._incoming, self._outgoing, server_side=not calling)
        self._sealer = context.wrap_socket(wire.duplicate(), server_side=not calling, do_handshake_on_connect=False)
        self._raw = memoryview(bytearray(READ_BYTES))
        self._left_of_record = 0
        self._bound = False
        self.sent_bytes = 0
        self.sent_at_s = time.monotonic()

    @property
    def heard_at_s(self) -> float:
        """When the kernel last gave something."""
        return self._wire.heard_at_s

    @property
    def chunk_bytes(self) -> int:
        """What to send at a time."""
        return self._wire.chunk_bytes

    @property
    def piece_bytes(self) -> int:
        """What to send at a time at the least, while there is more."""
        return self._wire.piece_bytes

    @property
    def worn(self) -> bool:
        """Whether its keys have sealed as much as they may."""
        return self.sent_bytes > SENT_BYTES_MAX

    @property
    def certificate(self) -> dict | None:
        """The peer's, decoded; it has been verified."""
        return self._opener.getpeercert()

    def shake_hands(self) -> None:
        """Run both handshakes to their end; raises ssl.SSLError or OSError. Only before threads use the stream."""
        shakes = (self._shake_sealer, self._shake_opener) if self._calling else (self._shake_opener, self._shake_sealer)
        for shake in shakes:
            shake()
        if self._sealer.getpeercert(True) != self._opener.getpeercert(True):
            raise StrangerError(f"{self._who} has another certificate one way than the other way")
        self._seal(memoryview(_binding(self._opener)))

    def _shake_sealer(self) -> None:
        self._in_time(self._sealer.do_handshake)

    def _in_time(self, work: Callable[[], object]) -> None:
        deadline_s = self._wire.deadline_s
        self._sealer.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))
        try:
            work()
        finally:
            self._sealer.settimeout(None)

    def _shake_opener(self) -> None:
        begun = False
        while True:
            try:
                self._opener.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if self._calling and not begun and self._wire.first_byte() not in (b"", _HANDSHAKE):
                    # No answer to this session's greeting, so an alert of the first: the other end refuses our certificate.
                    self._in_time(lambda: self._sealer.recv(1))
                    raise ConnectionResetError(f"{self._who} broke off between two TLS handshakes") from None
                begun = True
                self._feed_record()
            except ssl.SSLError:
                self._flush()  # the alert that tells the other side why
                raise
            else:
                self._flush()
                return

    def _flush(self) -> None:
        said = self._outgoing.read()
        if said:
            self._wire.send((said,))

    def _feed_record(self) -> None:
        """The next record's header, or what it announces, and nothing of what follows: that may be the other session's.

        The header goes in first: of one that is none OpenSSL says what it looks like.
        """
        size = self._left_of_record or RECORD_HEADER_BYTES
        piece = self._raw[:size]
        arrived = self._wire.receive(piece)
        self._left_of_record = 0 if self._left_of_record else int.from_bytes(piece[3:5], "big")
        self._feed(arrived)

    def send(self, parts: Sequence[memoryview | bytes]) -> None:
        """Encrypt all `parts` and hand them to the kernel; small ones share a record with what follows."""
        small = list[memoryview | bytes]()
        for part in parts:
            if len(part) <= JOIN_BYTES:
                small.append(part)
                continue
            view = memoryview(part)
            if small:
                room = max(0, RECORD_BYTES - sum(map(len, small)))
                self._seal(memoryview(b"".join([*small, view[:room]])))
                small.clear()
                view = view[room:]
            self._seal(view)
        if small:
            self._seal(memoryview(b"".join(small)))

    def _seal(self, view: memoryview) -> None:
        send, size, done = self._sealer.send, view.nbytes, 0
        while done < size:
            done += send(view[done:])  # a record a call
            self.sent_at_s = time.monotonic()
        self.sent_bytes += size

    def _feed(self, arrived: int) -> None:
        if arrived:
            self._incoming.write(self._raw[:arrived])
        else:
            self._incoming.write_eof()

    def receive(self, into: memoryview) -> int:
        """Fill `into`; fewer bytes only at the end of the stream, whether or not it was announced: frames have ends of their own.

        Raises:
            OSError: A record was forged or damaged, or the peer sent an alert.
            StrangerError: The two ways do not belong to one stream.
        """
        if not self._bound:
            self._bound = True
            expected = _binding(self._sealer)
            said = memoryview(bytearray(len(expected)))
            if self._receive(said) == len(expected) and bytes(said) != expected:
                raise StrangerError(f"{self._who}: its two ways do not belong to one stream, somebody stands in between")
        return self._receive(into)

    def _receive(self, into: memoryview) -> int:
        done, ended = self._open(into, 0, None)
        while done < into.nbytes and not ended:
            # So much must still come, whatever part of a record OpenSSL holds already: Python runs when it is there, and
            # not once a packet.
            sure = min(into.nbytes - done - SEALED_BYTES, READ_BYTES)
            if sure > 0:
                arrived = self._wire.receive_some(self._raw[:sure], socket.MSG_WAITALL)
            else:
                arrived = self._wire.receive_some(self._raw)
            done, ended = self._open(into, done, arrived)
        return done

    def _open(self, into: memoryview, done: int, arrived: int | None) -> tuple[int, bool]:
        """Decrypt what is here, `arrived` new bytes of it in `_raw`, into `into` from `done` on; how far, and if it ends."""
        read, size = self._opener.read, into.nbytes
        if arrived is not None:
            self._feed(arrived)
        try:
            while done < size:
                count = int(read(size - done, into[done:]))
                if not count:
                    return done, True
                done += count
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return done, True
        return done, False

    def tune(self, chunk_bytes_max: int) -> None:
        """Fit `chunk_bytes` to what the stream delivers."""
        self._wire.tune(chunk_bytes_max)

    def fit_buffers(self, window_bytes: float) -> None:
        """Make room for `window_bytes` in flight."""
        self._wire.fit_buffers(window_bytes)

    def kernel(self) -> Kernel:
        """The kernel's figures."""
        return self._wire.kernel()

    def end(self) -> None:
        """Say that nothing more will be sent; reading goes on. The goodbye frame has said so already."""
        self._wire.end()

    def close(self) -> None:
        """End it both ways, which wakes the threads inside."""
        self._wire.close()

    def forget(self) -> None:
        """Give the descriptor for sending back; the connection stays its opener's."""
        self._sealer.close()

    def release(self) -> None:
        """Give the descriptors back."""
        self.forget()
        self._wire.release()


def _binding(session: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """What only the two ends of this session know: the caller's finished message (RFC 5929's tls-unique)."""
    found = session.get_channel_binding("tls-unique")
    if not found:
        raise StrangerError("this Python cannot tell TLS sessions apart")
    return found
