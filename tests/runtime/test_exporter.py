"""The exporter: a real scrape over loopback shows what the rank's own lines and its links say."""

import socket
import urllib.request
from dataclasses import fields

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.errors import InputError
from isthmus.runtime.exporter import Exporter
from isthmus.runtime.wan.rail import LinkUse

USE = LinkUse(**{
    **{field.name: 0 for field in fields(LinkUse)},
    "frame_bytes_sent": 1000, "busy_s": 0.5, "goodput_bytes_per_s": 1800.0, "stall_s": 0.25, "rtt_s": 0.018, "retransmits": 3,
})  # fmt: skip
STEP = {"seconds": 0.2, "tokens": 64, "loss": 2.5, "exposed_s": 0.05}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_scrape_shows_steps_waits_and_links_with_their_labels() -> None:
    port = _free_port()
    exporter = Exporter(("127.0.0.1", port), {"region": "east", "rank": "1"}, lambda: {"west": USE})
    try:
        for _ in range(3):
            exporter.observe("step", STEP)
        exporter.observe("sync", {"seconds": 1.5})
        exporter.observe("regroup", {"generation": 4, "regions": ["east", "west"]})
        exporter.observe("discarded", {"tokens": 640})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = {sample.name: sample for family in families for sample in family.samples}
    finally:
        exporter.close()
    own = {"region": "east", "rank": "1"}
    expected = {
        "isthmus_steps_total": 3, "isthmus_tokens_total": 192, "isthmus_loss": 2.5, "isthmus_sync_seconds_total": 1.5,
        "isthmus_generation": 4, "isthmus_regions": 2, "isthmus_discarded_tokens_total": 640,
    }  # fmt: skip
    assert {name: samples[name].value for name in expected} == expected
    assert all(samples[name].labels == own for name in expected)
    assert samples["isthmus_waiting_seconds_total"].value == pytest.approx(0.15)
    assert samples["isthmus_link_sent_bytes_total"].value == 1000
    assert samples["isthmus_link_rtt_seconds"].labels == {**own, "peer": "west"}


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(InputError, match=f"ISTHMUS_EXPORT: 127.0.0.1:{port} cannot be listened on"):
            Exporter(("127.0.0.1", port), {"region": "east", "rank": "0"}, dict)
