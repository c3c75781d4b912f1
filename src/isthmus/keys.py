"""Keys for TLS between regions: one authority for the federation, one certificate for each region and the coordinator.

    keys/ca.pem  keys/ca.key  keys/<region>.pem  keys/<region>.key  keys/coordinator.pem  keys/coordinator.key

A certificate names its owner as a URI, `isthmus://region/<name>` or `isthmus://coordinator`; addresses are not in it. A machine
needs `ca.pem` and its own two files; `ca.key` stays with whoever adds regions. ECDSA over P-256 with SHA-256 (FIPS 186-5).
"""

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from isthmus.errors import InputError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["AUTHORITY", "COORDINATOR", "COORDINATOR_URI", "make_keys", "region_uri"]

AUTHORITY: Final = "ca"
COORDINATOR: Final = "coordinator"
COORDINATOR_URI: Final = "isthmus://coordinator"
AUTHORITY_DAYS: Final = 3650
OWNER_DAYS: Final = 825
_BACKDATED: Final = datetime.timedelta(hours=24)  # clocks of regions differ


def region_uri(region: str) -> str:
    """How a certificate names `region`."""
    return f"isthmus://region/{quote(region, safe='')}"


@dataclass(frozen=True, slots=True)
class _Pair:
    key: "EllipticCurvePrivateKey"
    certificate: "x509.Certificate"


def make_keys(regions: Sequence[str], folder: Path, days: int = OWNER_DAYS) -> list[Path]:
    """Make the authority and the coordinator's certificate where they are missing, and a certificate for each of `regions`.

    Nothing is ever overwritten: to renew a certificate, move the old one away first.

    Args:
        regions: Names as in members.json, all new in `folder`.
        folder: Made when missing (mode 0700); with an authority in it, that one signs.
        days: Validity of the new certificates.

    Returns:
        The files written, in order.

    Raises:
        InputError: A name cannot be a file's, is given twice, or has a certificate already; or the authority is incomplete.
    """
    _check(regions, folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written: list[Path] = []
    authority = _load(folder)
    if authority is None:
        authority = _sign("isthmus federation", None, None, AUTHORITY_DAYS)
        written += _write(folder, AUTHORITY, authority)
    if not (folder / f"{COORDINATOR}.pem").exists():
        written += _write(folder, COORDINATOR, _sign(COORDINATOR, COORDINATOR_URI, authority, days))
    for region in regions:
        written += _write(folder, region, _sign(region[:64], region_uri(region), authority, days))
    return written


def _check(regions: Sequence[str], folder: Path) -> None:
    for number, region in enumerate(regions):
        if not region or region in {AUTHORITY, COORDINATOR} or region.startswith((".", "-")) or set(region) & set("/\\\0"):
            raise InputError(
                region or "REGION",
                "cannot name a file of keys",
                f"any name but {AUTHORITY} and {COORDINATOR}, without / and without a leading . or -",
            )
        if region in regions[:number]:
            raise InputError(region, "is given twice")
        for suffix in (".pem", ".key"):
            path = folder / f"{region}{suffix}"
            if path.exists():
                raise InputError(str(path), "exists, and keys are never overwritten", "move it away to make a new one")


def _load(folder: Path) -> _Pair | None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate_path, key_path = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if not certificate_path.exists() and not key_path.exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        hint = "adding a region takes both ca.pem and ca.key of the first `isthmus keys`"
        raise InputError(str(folder), f"its authority cannot be used: {error}", hint) from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(str(key_path), f"does not belong to {certificate_path.name}")
    return _Pair(key, certificate)


def _sign(name: str, uri: str | None, authority: _Pair | None, days: int) -> _Pair:
    """A new key with its certificate; without `uri` and `authority` it is an authority and signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=uri is None, path_length=0 if uri is None else None), critical=True)
        .add_extension(_usage(signs=uri is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if uri is not None:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(names, critical=False)
    if authority is not None:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
    return _Pair(key, builder.sign(authority.key if authority else key, hashes.SHA256()))


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, stem: str, pair: _Pair) -> list[Path]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = pair.certificate.public_bytes(Encoding.PEM)
    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    paths = [folder / f"{stem}.key", folder / f"{stem}.pem"]
    for path, content, mode in zip(paths, (key, certificate), (0o600, 0o644), strict=True):
        # O_EXCL: the file is new and ours alone from its first byte.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(content)
    return paths
