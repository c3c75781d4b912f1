"""`isthmus watch`: what it makes of two scrapes, of real exporters and of none."""

import json
import socket
import threading
from dataclasses import fields, replace
from typing import Any

import pytest

from isthmus.cli import main
from isthmus.deploy.observability.rules import BELOW_PLAN, STRAGGLING
from isthmus.errors import InputError
from isthmus.runtime.exporter import Exporter
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.wan.rail import LinkUse
from isthmus.watch import Reading, Scraper, links_now, parse_addresses, read_metrics, regions_now, tables
from isthmus.watch.tables import remarks

NOTHING = LinkUse(**{field.name: 0 for field in fields(LinkUse)})


class Rank:
    """An exporter as a rank has it, and what its link did."""

    def __init__(self, region: str, rank: int, peer: str, port: int) -> None:
        self.use = NOTHING
        self.exporter = Exporter(("127.0.0.1", port), {"region": region, "rank": str(rank)}, lambda: {peer: self.use})

    def step(self, seconds: float, waiting: float) -> None:
        self.exporter.observe("step", {"seconds": seconds, "tokens": 100, "loss": 2.0, "exposed_s": waiting})


@pytest.fixture
def ranks() -> Any:
    """Two ranks of east, one of west, and a scraper that knows a fourth which is not there."""
    ports = free_ports(4)
    made = [Rank("east", 0, "west", ports[0]), Rank("east", 1, "west", ports[1]), Rank("west", 0, "east", ports[2])]
    yield made, Scraper([("127.0.0.1", port) for port in ports])
    for rank in made:
        rank.exporter.close()


def isthmus(monkeypatch: Any, *arguments: str) -> Any:
    monkeypatch.setattr("sys.argv", ["isthmus", "watch", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_two_scrapes_say_how_long_steps_take_and_what_links_carry_while_they_send(ranks: Any) -> None:
    (first, second, other), scraper = ranks
    for rank in (first, second, other):
        rank.exporter.observe("regroup", {"generation": 3, "regions": ["east", "west"]})
        rank.step(9.0, 9.0)  # before the first look: counts for nothing but the number of steps
    first.use = replace(NOTHING, frame_bytes_sent=10_000_000, busy_s=7.0)
    before, silent = scraper.scrape()
    assert len(before) == 3
    assert len(silent) == 1
    for _ in range(4):
        first.step(0.5, 0.1)
        second.step(0.5, 0.3)
        other.step(0.5, 0.0)
    first.use = replace(NOTHING, frame_bytes_sent=12_000_000, busy_s=7.5, rtt_s=0.02, retransmits=2)
    second.use = replace(NOTHING, frame_bytes_sent=3_000_000, busy_s=1.0, rtt_s=0.03)
    after, _ = scraper.scrape()
    after = {address: Reading(before[address].at_s + 2.0, reading.values) for address, reading in after.items()}
    east, west = regions_now(before, after)
    assert (east.region, east.answering, east.step, east.together, east.generation) == ("east", 2, 5, 2, 3)
    assert (east.step_s, east.waiting_share, east.own_s) == pytest.approx((0.5, 0.4, 0.3))
    assert (west.own_s, west.tokens_per_s) == pytest.approx((0.5, 200.0))
    there, back = links_now(before, after)
    assert (there.region, there.peer, there.rtt_s) == ("east", "west", 0.03)
    assert there.goodput_bytes_per_s == pytest.approx(2e6 / 0.5 + 3e6 / 1.0)
    assert (there.sent_bytes_per_s, there.busy_share) == pytest.approx((2.5e6, 0.5))
    assert there.resent_share == pytest.approx(2 * 1448 / 5e6)
    assert back.goodput_bytes_per_s is None


def test_counters_that_began_anew_are_not_taken_for_negative_rates(ranks: Any) -> None:
    (first, *_), scraper = ranks
    first.use = replace(NOTHING, frame_bytes_sent=9_000_000, busy_s=9.0)
    before, _ = scraper.scrape()
    first.use = replace(NOTHING, frame_bytes_sent=1_000_000, busy_s=0.5)
    after, _ = scraper.scrape()
    assert links_now(before, after)[0].goodput_bytes_per_s == pytest.approx(2e6)


def test_remarks_name_the_link_below_plan_the_slow_region_and_who_is_alone() -> None:
    text = """isthmus_step_seconds_count{{region="{0}",rank="0"}} {1}
isthmus_step_seconds_sum{{region="{0}",rank="0"}} {2}
isthmus_regions{{region="{0}",rank="0"}} {3}
isthmus_link_sent_bytes_total{{region="{0}",rank="0",peer="b"}} {4}
isthmus_link_busy_seconds_total{{region="{0}",rank="0",peer="b"}} {5}
"""

    def look(at_s: float, *rows: tuple[Any, ...]) -> dict[tuple[str, int], Reading]:
        return {("h", number): read_metrics(text.format(*row), at_s) for number, row in enumerate(rows)}

    before = look(0.0, ("a", 0, 0, 2, 0, 0), ("c", 0, 0, 1, 0, 0))
    after = look(10.0, ("a", 10, 10, 2, 1e9, 5), ("c", 10, 20, 1, 0, 0))
    regions, links = regions_now(before, after), links_now(before, after)
    found = remarks(regions, links, ["h:3: refused"], {("a", "b"): 4e8})
    assert found == [
        "no answer from h:3: refused",
        "a to b carries 50% of what was planned while it sends",
        "c computes 2.0 x as long as a",
        "c trains with 1 of 2 regions",
    ]
    assert remarks(regions[:1], links[:1], [], {("a", "b"): 2e8}) == []


@pytest.mark.parametrize("text", ["9600", "host:", "host:0", "host:9700-9600", "host:1-65535", "http://h:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="ADDRESS"):
        parse_addresses([text])


def test_addresses_with_a_range_are_all_of_it() -> None:
    assert parse_addresses(["h:9600-9602", "[::1]:5"]) == [("h", 9600), ("h", 9601), ("h", 9602), ("[::1]", 5)]


def test_another_programs_metrics_are_refused() -> None:
    with pytest.raises(InputError, match="not with metrics of isthmus"):
        read_metrics("node_cpu_seconds_total 5\n", 0.0)


def test_what_is_no_number_or_no_exporter_at_all_is_said_without_a_traceback() -> None:
    with pytest.raises(InputError, match="'many' for a number"):
        read_metrics('isthmus_steps_total{region="a",rank="0"} many\n', 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as caller:
                caller.recv(4096)
                caller.sendall(b"SSH-2.0-OpenSSH\r\n")

        answering = threading.Thread(target=greet, daemon=True)
        answering.start()
        address = listener.getsockname()
        readings, silent = Scraper([address]).scrape()
        answering.join(5.0)
    assert (readings, list(silent)) == ({}, [address])


def test_terminal_and_alarms_have_the_same_thresholds() -> None:
    assert (tables.BELOW_PLAN, tables.STRAGGLING) == (BELOW_PLAN, STRAGGLING)


def test_the_command_shows_both_tables_and_says_it_in_json(ranks: Any, monkeypatch: Any, capsys: Any) -> None:
    (first, *_), scraper = ranks
    first.step(0.5, 0.1)
    ports = [f"127.0.0.1:{port}" for _, port in scraper.addresses]
    monkeypatch.setenv("COLUMNS", "80")
    assert isthmus(monkeypatch, *ports, "--once", "--every", "0.2") == 0
    shown = capsys.readouterr().out
    assert "regions" in shown
    assert "sending" in shown
    assert "\u2026" not in shown, "a figure was cut"
    assert "2.000" in shown  # the loss of the rank that has taken a step
    assert f"no answer from {ports[3]}" in shown
    assert isthmus(monkeypatch, *ports, "--once", "--every", "0.2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["region"] for each in found["regions"]] == ["east", "west"]
    assert list(found["silent"]) == [ports[3]]


def test_nobody_who_answers_is_said_with_why(monkeypatch: Any, capsys: Any) -> None:
    (port,) = free_ports(1)
    assert isthmus(monkeypatch, f"127.0.0.1:{port}") == 2
    assert "none of 1 exporters answers" in capsys.readouterr().err
