"""Ports for runs on one machine: named once, and only where nothing listens."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from isthmus.runtime.loopback import free_ports


def test_a_port_is_named_to_one_caller_and_none_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = free_ports(1)
    with socket.create_server(("127.0.0.1", taken)):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        cursor = tmp_path / f"isthmus-ports-{os.getuid()}"
        cursor.write_text(str(taken - 10_000))  # a sequence of this test's own, which comes to that port next
        first, second = free_ports(3), free_ports(2)
        assert taken not in first + second
        assert len({*first, *second}) == 5
        cursor.write_text("17999")  # the end of the sequence: it begins again
        assert all(10_000 <= port < 28_000 for port in free_ports(3))
