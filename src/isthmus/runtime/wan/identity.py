"""Who a region is: its keys, as `isthmus keys` writes them, and the TLS contexts that come of them."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.errors import InputError
from isthmus.keys import AUTHORITY, COORDINATOR, COORDINATOR_URI, region_uri

__all__ = ["Identity"]


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
