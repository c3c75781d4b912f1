"""Rails on loopback, both ends in this process, in the clear or inside TLS; and who tries to disturb them."""

import contextlib
import socket
import threading
import time

import pytest
import torch

from isthmus.keys import make_keys
from isthmus.runtime.environment import Members
from isthmus.runtime.wan.frames import Frame, chunk_check, pack_frame
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.rail import Rail, RailOptions

LOOPBACK = "127.0.0.1"


class Wan:
    """What the tests of rails share."""

    def __init__(self, keys) -> None:
        self.keys = keys

    def members(self, regions=2):
        with contextlib.ExitStack() as stack:
            ports = [stack.enter_context(socket.create_server((LOOPBACK, 0))).getsockname()[1] for _ in range(regions)]
        listed = [{"name": f"r{number}", "rails": [f"{LOOPBACK}:{port}"]} for number, port in enumerate(ports)]
        return Members.model_validate({"regions": listed})

    def identity(self, region, folder="ours"):
        return Identity.load(self.keys / folder, region)

    def together(self, *calls):
        """Run the calls at once; their results, or errors, in order."""
        results = [None] * len(calls)

        def run(index, call):
            try:
                results[index] = call()
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "hung"
        return results

    @contextlib.contextmanager
    def rails(self, regions=2, *, tls=False, streams=3, timeout_s=10.0, members=None, **options):
        """One open rail a region, all in this process; `options` as in RailOptions."""
        members = members or self.members(regions)

        def place(number):
            identity = self.identity(f"r{number}") if tls else None
            return Rail.open(members, number, 0, streams, timeout_s, RailOptions(identity=identity, **options))

        rails = self.together(*(lambda number=number: place(number) for number in range(regions)))
        for rail in rails:
            if isinstance(rail, Exception):
                raise rail
        try:
            yield rails
        finally:
            self.together(*(rail.close for rail in rails))

    def exchange(self, rails, tag, size=1_000_003):
        """Every region sends every other one a message under `tag`; all bytes must arrive."""
        def swap(rail):
            peers = [peer for peer in range(rail.regions) if peer != rail.region]
            got = {peer: torch.empty(size, dtype=torch.uint8) for peer in peers}
            tickets = [rail.receive(peer, tag, got[peer]) for peer in peers]
            mine = pattern(size, tag * 16 + rail.region)
            tickets += [rail.send(peer, tag, mine) for peer in peers]
            for ticket in tickets:
                ticket.wait()
            return all(torch.equal(got[peer], pattern(size, tag * 16 + peer)) for peer in peers)

        return self.together(*(lambda rail=rail: swap(rail) for rail in rails))


def pattern(size, seed):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def wait_until(true, limit_s=10.0):
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, "never happened"
        time.sleep(0.005)


def data(tag, total, offset, chunk, *, serial=1, sequence=0):
    """A data frame: header and chunk."""
    return pack_frame(Frame(1, sequence, serial, tag, total, offset, len(chunk), chunk_check(chunk))) + chunk


def signal(kind, sequence, received=0):
    return pack_frame(Frame(kind, sequence, 0, 0, received, 0, 0, 0))


@pytest.fixture(scope="session")
def wan(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys")
    make_keys(["r0", "r1", "r2"], keys / "ours")
    make_keys(["r0", "r1", "r2"], keys / "theirs")
    return Wan(keys)
