"""The store by which ranks meet listens where it was told to, and nowhere else."""

import errno
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isthmus.plan import Strategy
from isthmus.runtime import world
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.world import open_store

WAIT = timedelta(seconds=10)


def listening(port: int) -> set[str]:
    """Local addresses, in the kernel's hexadecimal, that listen on `port`."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            host, _, number = address.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(host)
    return found


def test_the_store_listens_on_its_address_only_and_serves_there() -> None:
    (port,) = free_ports(1)
    served = open_store(("127.0.0.1", port), 2, serves=True, timeout=WAIT)
    assert listening(port) == {"0100007F"}
    joined = open_store(("127.0.0.1", port), 2, serves=False, timeout=WAIT)
    joined.set("key", "value")
    assert served.get("key") == b"value"


def test_where_the_address_is_not_this_hosts_the_store_says_that_it_listens_everywhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def foreign(*_: Any, **__: Any) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(world, "open_listener", foreign)
    (port,) = free_ports(1)
    held = open_store(("127.0.0.1", port), 1, serves=True, timeout=WAIT)
    assert listening(port) - {"0100007F"}
    assert f"it listens on EVERY interface, port {port}" in capfd.readouterr().err
    del held


def test_a_taken_port_is_an_error_and_no_reason_to_listen_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        open_store(("127.0.0.1", taken.getsockname()[1]), 1, serves=True, timeout=WAIT)


@pytest.mark.tunnel
@pytest.mark.parametrize("kind", ["flat", "hierarchical"])
def test_ranks_of_a_run_listen_on_their_given_addresses_only(kind: Any, nursery: Any) -> None:
    outcome = nursery.run(Strategy(name=kind, kind=kind), steps=2, listeners=True).succeeded()
    said = [line for log in outcome.logs for line in log.splitlines() if line.startswith("listens on")]
    assert said[0] == "listens on ['0100007F']", said
    assert set(said) <= {"listens on ['0100007F']", "listens on []"}, said
