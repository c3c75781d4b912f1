"""TLS 1.3 between regions, both sides with a certificate: who a region is, and a stream inside TLS.

The federation's own authority (`isthmus keys`) signs one certificate a region. It names the region as the URI
`isthmus://region/<name>`; the coordinator's is `isthmus://coordinator`. Nothing else is looked at: addresses may change.

What this leaves out: revocation (make new keys), and the kernel's TLS, which Python 3.11 cannot switch on.
"""

import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from isthmus.errors import InputError
from isthmus.keys import AUTHORITY, COORDINATOR, COORDINATOR_URI, region_uri
from isthmus.runtime.wan.frames import StrangerError
from isthmus.runtime.wan.streams import Kernel, PlainStream

__all__ = ["Identity", "TlsStream", "greet", "peer_region", "reason", "uris"]

_REGION: Final = region_uri("")
RECORD_BYTES: Final = 1 << 14
SEALED_BYTES: Final = RECORD_BYTES + 256 + 5  # the most that a record takes on the wire (RFC 8446, 5.1 and 5.2)
# What goes through OpenSSL's memory at a time stays in a core's own cache: with 1 MiB both ways run at half the speed.
FLUSH_BYTES: Final = 1 << 16
READ_BYTES: Final = 1 << 16
JOIN_BYTES: Final = 1 << 12
# AES-GCM may seal 2^24.5 full records under one key (RFC 8446, 5.5); Python cannot renew a key, so the stream is renewed.
SENT_BYTES_MAX: Final = RECORD_BYTES << 23


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this rank is to the others: contexts to call and to answer with, both asking for the other's certificate.

    Attributes:
        region: Name of the region; "" for the coordinator.
        folder: Where the keys came from.
    """

    region: str
    folder: str
    calling: ssl.SSLContext = field(repr=False)
    answering: ssl.SSLContext = field(repr=False)

    @classmethod
    def load(cls, folder: Path | str, region: str) -> "Identity":
        """Read `ca.pem`, `<region>.pem` and `<region>.key` of `folder`, as `isthmus keys` writes them.

        Raises:
            InputError: A file is missing or no key, the two do not belong together, or the certificate is another's.
        """
        return cls._load(Path(folder), region, region, region_uri(region))

    @classmethod
    def coordinator(cls, folder: Path | str) -> "Identity":
        """The same for the coordinator: `coordinator.pem` and `coordinator.key`."""
        return cls._load(Path(folder), "", COORDINATOR, COORDINATOR_URI)

    @classmethod
    def _load(cls, folder: Path, region: str, stem: str, uri: str) -> "Identity":
        hint = f"isthmus keys {stem if region else '...'} -o {folder}"
        authority, certificate, key = folder / f"{AUTHORITY}.pem", folder / f"{stem}.pem", folder / f"{stem}.key"
        for path in (authority, certificate, key):
            if not path.is_file():
                raise InputError(str(path), "is missing: TLS between regions needs it", hint)
        contexts = []
        for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
            context = ssl.SSLContext(protocol)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # names of regions, not of hosts: `peer_region` checks them
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(authority)
                context.load_cert_chain(certificate, key)
            except (ssl.SSLError, OSError) as error:
                found = f"cannot be used with {key.name} and {authority.name}: {error}"
                raise InputError(str(certificate), found, hint) from None
            contexts.append(context)
        contexts[1].num_tickets = 0  # every stream makes its own keys
        found = _own_uris(certificate)
        if found != [uri]:
            raise InputError(str(certificate), f"is a certificate of {', '.join(found) or 'nobody'}, expected {uri}", hint)
        return cls(region, str(folder), *contexts)


def _own_uris(certificate: Path) -> list[str]:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


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
    stream = TlsStream(wire, identity, calling=calling)
    try:
        stream.shake_hands()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ConnectionResetError(f"{who} ended the connection inside the TLS handshake") from error
    except ssl.SSLError as error:
        raise StrangerError(f"{who}: {reason(error)}") from error
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
    """TLS over one TCP stream, in memory: OpenSSL never touches the socket, so sender and receiver block outside its lock.

    OpenSSL's connection object is not safe for two threads, and CPython 3.11 does not guard it: `_lock` does. It is held for
    `FLUSH_BYTES` or `READ_BYTES` at a time: one call seals that much, SSL_read opens one record of 16 KB a call.
    """

    def __init__(self, wire: PlainStream, identity: Identity, *, calling: bool) -> None:
        self._wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = identity.calling if calling else identity.answering
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not calling)
        self._raw = memoryview(bytearray(READ_BYTES))
        self._lock = threading.Lock()
        self.sent_bytes = 0

    @property
    def sent_at_s(self) -> float:
        """When the kernel last took something."""
        return self._wire.sent_at_s

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
        return self._tls.getpeercert()

    def shake_hands(self) -> None:
        """Run the handshake to its end; raises ssl.SSLError or OSError. Only before threads use the stream."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed(self._wire.receive_some(self._raw))
            except ssl.SSLError:
                self._flush()  # the alert that tells the other side why
                raise
            else:
                self._flush()
                return

    def send(self, parts: Sequence[memoryview | bytes]) -> None:
        """Encrypt all `parts` and hand them to the kernel; small ones share a record."""
        small: list[memoryview | bytes] = []
        for part in parts:
            if len(part) <= JOIN_BYTES:
                small.append(part)
                continue
            if small:
                self._seal(memoryview(b"".join(small)))
                small.clear()
            self._seal(memoryview(part))
        if small:
            self._seal(memoryview(b"".join(small)))
        self._flush()

    def _seal(self, view: memoryview) -> None:
        write, size = self._tls.write, view.nbytes
        done = 0
        while done < size:
            stop = min(size, done + FLUSH_BYTES)
            with self._lock:
                while done < stop:
                    done += write(view[done:stop])
                sealed = self._outgoing.read() if done < size else b""
            if sealed:
                self._wire.send((sealed,))
        self.sent_bytes += size

    def _flush(self) -> None:
        with self._lock:
            sealed = self._outgoing.read()
        if sealed:
            self._wire.send((sealed,))

    def _feed(self, arrived: int) -> None:
        if arrived:
            self._incoming.write(self._raw[:arrived])
        else:
            self._incoming.write_eof()

    def receive(self, into: memoryview) -> int:
        """Fill `into`; fewer bytes only at the end of the stream, whether or not it was announced: frames have ends of their own.

        Raises:
            OSError: A record was forged or damaged, or the peer sent an alert.
        """
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
        read, size = self._tls.read, into.nbytes
        with self._lock:
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

    def release(self) -> None:
        """Give the descriptor back."""
        self._wire.release()
