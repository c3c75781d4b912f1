"""`isthmus coordinator`: the small server through which regions find each other and regroup."""

import asyncio
import ipaddress
import ssl
import sys
from pathlib import Path
from typing import Annotated

import typer

from isthmus.errors import InputError

EXAMPLES = """Examples:

isthmus coordinator --journal coordinator.journal

isthmus coordinator --listen 10.77.0.2:29700 --journal coordinator.journal --keys keys
"""


def coordinator(
    listen: Annotated[str, typer.Option(help="host:port; other machines need --keys, or --insecure.")] = "127.0.0.1:29700",
    journal: Annotated[Path | None, typer.Option(help="File that keeps everything over a restart.")] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of `isthmus keys`: TLS 1.3, certificates on both sides.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines in the clear.")] = False,
) -> None:
    """Serve the store of a federation until stopped; regions give it as ISTHMUS_COORDINATOR=tcp://host:port."""
    from isthmus.runtime.environment import split_address
    from isthmus.runtime.federation.coordinator import serve

    try:
        address = split_address(listen)
    except ValueError as error:
        raise InputError("--listen", str(error)) from error
    if keys is None and not insecure and not _is_loopback(address[0]):
        raise InputError(
            "--listen",
            f"{listen!r} is not on the loopback interface, and anybody who reaches it could break the run",
            "give --keys (see `isthmus keys`), or --insecure on a network that you trust",
        )
    tls = _tls(keys) if keys is not None else None
    print(f"isthmus coordinator: tcp://{listen}" + (f", journal {journal}" if journal else ", no journal"), file=sys.stderr)
    try:
        asyncio.run(serve(address, journal, tls))
    except OSError as error:
        if error.filename is not None:
            raise InputError("--journal", f"{str(journal)!r} cannot be kept: {error.strerror}") from error
        raise InputError("--listen", f"{listen!r} cannot be served: {error}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(folder: Path) -> ssl.SSLContext:
    from isthmus.runtime.wan.identity import Identity

    return Identity.coordinator(folder).answering
