"""One contract for every store: the coordinator's table, the coordinator over loopback, and (where it is installed) etcd."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.runtime.federation.coordinator import serving
from isthmus.runtime.federation.journal import Journal
from isthmus.runtime.federation.store import Store, StoreLostError, StoreRefusedError, open_store
from isthmus.runtime.loopback import free_ports

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")


class Etcd:
    """A cluster of real members on loopback."""

    def __init__(self, folder: Path, members: int) -> None:
        self.ports = free_ports(2 * members)
        self.folder, self.members = folder, members
        peers = ",".join(f"m{number}=http://127.0.0.1:{self.ports[members + number]}" for number in range(members))
        self.processes = [self._start(number, peers) for number in range(members)]

    def _start(self, number: int, peers: str) -> "subprocess.Popen[bytes]":
        client, peer = (f"http://127.0.0.1:{self.ports[number + offset]}" for offset in (0, self.members))
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def address(self) -> str:
        return "etcd+http://" + ",".join(f"127.0.0.1:{port}" for port in self.ports[: self.members])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(params=["coordinator", pytest.param("etcd", marks=[pytest.mark.tunnel, needs_etcd])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "etcd":
        cluster = Etcd(tmp_path, 1)
        opened = open_store(cluster.address, patience_s=20.0)
        try:
            yield opened
        finally:
            opened.close()
            cluster.close()
        return
    (port,) = free_ports(1)
    with serving(("127.0.0.1", port), tmp_path / "journal"):
        opened = open_store(f"tcp://127.0.0.1:{port}")
        yield opened
        opened.close()


def test_a_transaction_changes_all_or_nothing(store: Store) -> None:
    assert store.txn({"a": 0, "b": 0}, {"a": "1", "b": "2"})
    first = store.get("a")
    assert first is not None
    assert not store.txn({"a": first.revision, "c": 1}, {"a": "x"}, ("b",))
    assert store.get("a") == first
    assert store.txn({"a": first.revision}, {"a": "3"}, ("b",))
    assert [(key, entry.value) for key, entry in store.list("").entries.items()] == [("a", "3")]


def test_of_many_who_compare_and_swap_each_revision_is_won_once(store: Store) -> None:
    store.txn({}, {"count": "0"})

    def add() -> None:
        for _ in range(5):
            while True:
                entry = store.get("count")
                assert entry is not None
                if store.txn({"count": entry.revision}, {"count": str(int(entry.value) + 1)}):
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    entry = store.get("count")
    assert entry is not None
    assert entry.value == "20"


def test_a_watch_tells_what_happened_since_the_listing_and_is_silent_on_other_keys(store: Store) -> None:
    store.txn({}, {"a/1": "x"})
    seen = store.list("a/")
    assert store.watch("a/", seen.revision, 0.05) is None
    store.txn({}, {"b/1": "y"})
    assert store.watch("a/", seen.revision, 0.05) is None
    store.txn({}, {}, ("a/1",))
    told = store.watch("a/", seen.revision, 5.0)
    assert told is not None
    assert told.entries == {}


def test_entries_go_with_their_lease_and_an_ended_lease_takes_none(store: Store) -> None:
    lease = store.grant(60.0)
    store.txn({}, {"mine": "x"}, lease=lease)
    assert store.keep_alive(lease)
    store.revoke(lease)
    store.revoke(lease)
    assert store.get("mine") is None
    assert not store.keep_alive(lease)
    with pytest.raises(StoreRefusedError, match="lease"):
        store.txn({}, {"mine": "x"}, lease=lease)


def test_a_lease_that_nobody_keeps_ends_and_the_watch_tells(store: Store) -> None:
    lease = store.grant(1.0)
    store.txn({}, {"live/a": "x"}, lease=lease)
    seen = store.list("live/")
    told = store.watch("live/", seen.revision, 15.0)
    assert told is not None
    assert told.entries == {}


def test_what_is_too_large_is_refused_alike(store: Store) -> None:
    with pytest.raises(StoreRefusedError, match="a key of 513 bytes"):
        store.txn({}, {"k" * 513: ""})
    with pytest.raises(StoreRefusedError, match="65537 bytes"):
        store.txn({}, {"k": "v" * 65537})


def test_a_server_that_is_not_there_is_reported_lost_after_the_patience() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreLostError, match=rf"127.0.0.1:{port} did not answer within 0.1 s"):
        open_store(f"tcp://127.0.0.1:{port}", patience_s=0.1).get("a")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "tcp://", "tcp://a:1,b:2", "tcp://a:0", "http://a:1", "etcd+https://a:1"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="ISTHMUS_COORDINATOR"):
        open_store(address)


@pytest.mark.parametrize(
    "bytes_sent",
    [struct.pack(">I", 1 << 30), struct.pack(">I", 4) + b"nope", struct.pack(">I", 2) + b"[]", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_a_stranger_is_disconnected_and_the_others_are_served(bytes_sent: bytes, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with serving(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), 5) as stranger:
        stranger.sendall(bytes_sent)
        assert stranger.recv(1) == b""
        opened = open_store(f"tcp://127.0.0.1:{port}")
        assert opened.txn({}, {"a": "1"})
        opened.close()


@pytest.mark.parametrize("request_", [{}, {"do": "drop"}, {"do": "get"}, {"do": "get", "key": 1}, {"do": "grant", "ttl_s": -1}])
def test_a_malformed_request_is_answered_with_why(request_: dict[str, object]) -> None:
    (port,) = free_ports(1)
    with serving(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), 5) as client:
        body = json.dumps(request_).encode()
        client.sendall(struct.pack(">I", len(body)) + body)
        (size,) = struct.unpack(">I", client.recv(4))
        assert "refused" in json.loads(client.recv(size))


def test_a_journal_cut_anywhere_in_its_last_line_keeps_all_before_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    book = Journal(path, 0.0)
    for number in range(3):
        change = {"do": "txn", "puts": {f"k{number}": "v"}, "deletes": [], "lease": 0}
        book.write(change)
        book.table.apply({f"k{number}": "v"}, ())
    book.close()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(path, 0.0)
        assert list(again.table.listing("").entries) == ["k0", "k1"]
        again.close()
        assert path.read_bytes() == whole[:last]


def test_a_journal_damaged_before_its_last_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('00000000 {"do":"txn"}\n00000000 {"do":"txn"}\n')
    with pytest.raises(InputError, match="journal:1: is no line of a coordinator's journal"):
        Journal(path, 0.0)


def test_a_compacted_journal_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    book = Journal(path, 0.0, compact_bytes=2000)
    lease = book.table.grant(7.0, 0.0)
    book.write({"do": "grant", "lease": lease, "ttl_s": 7.0})
    for number in range(200):
        puts = {f"k{number % 5}": "v" * 20}
        book.write({"do": "txn", "puts": puts, "deletes": [], "lease": lease})
        book.table.apply(puts, (), lease)
    book.close()
    again = Journal(path, 100.0)
    assert path.stat().st_size < 6000
    assert again.table.entries() == book.table.entries()
    assert (again.table.revision, again.table.leases()) == (book.table.revision, {lease: 7.0})
    assert again.table.ended(106.0) == []
    assert again.table.ended(107.0) == [lease]
    again.close()


def test_two_coordinators_cannot_share_a_journal(tmp_path: Path) -> None:
    book = Journal(tmp_path / "journal", 0.0)
    with pytest.raises(InputError, match="in use by another coordinator"):
        Journal(tmp_path / "journal", 0.0)
    book.close()


def test_neither_the_coordinator_nor_a_regions_membership_needs_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import isthmus.cli.coordinator, isthmus.runtime.federation.coordinator, isthmus.runtime.federation.membership\n"
        "from isthmus.runtime.federation import Membership, open_store\n"
        "import isthmus.runtime.federation.tcp_store, isthmus.runtime.federation.etcd_store\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.tunnel
def test_a_coordinator_killed_at_any_time_loses_nothing_that_it_answered(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "isthmus", "coordinator", "--listen", f"127.0.0.1:{port}", "--journal", str(tmp_path / "j")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    opened = open_store(f"tcp://127.0.0.1:{port}", patience_s=30.0)
    lease = opened.grant(2.0)
    opened.txn({}, {"live": "x"}, lease=lease)
    try:
        done = 0
        for _ in range(3):
            until_s = time.monotonic() + 0.3
            while time.monotonic() < until_s:
                assert opened.txn({}, {"count": str(done + 1)})
                done += 1
                opened.keep_alive(lease)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            entry = opened.get("count")
            assert entry is not None
            assert int(entry.value) == done
            assert opened.keep_alive(lease), "a lease begins its time anew after a restart"
        assert done > 30
    finally:
        opened.close()
        server.kill()
        server.wait()


@pytest.mark.tunnel
@needs_etcd
def test_an_etcd_cluster_that_loses_a_member_goes_on_and_one_that_lost_two_does_not(tmp_path: Path) -> None:
    cluster = Etcd(tmp_path, 3)
    opened = open_store(cluster.address, patience_s=20.0)
    try:
        assert opened.txn({"a": 0}, {"a": "1"})
        for process in cluster.processes[:1]:
            process.kill()
            process.wait()
        entry = opened.get("a")
        assert entry is not None
        assert opened.txn({"a": entry.revision}, {"a": "2"})
        cluster.processes[1].kill()
        cluster.processes[1].wait()
        lone = open_store(cluster.address, patience_s=2.0)
        with pytest.raises(StoreLostError):
            lone.get("a")
        lone.close()
    finally:
        opened.close()
        cluster.close()
