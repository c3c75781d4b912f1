"""Traces: what a viewer needs to place every span."""

import json

from hypothesis import given
from hypothesis import strategies as st

from isthmus.formats.perfetto import Span, trace_events

SPANS = st.lists(
    st.builds(
        Span,
        process=st.sampled_from(["a 0", "a 1", "b 0"]),
        track=st.sampled_from(["steps", "training"]),
        name=st.text(max_size=5),
        begin_s=st.floats(1.7e9, 1.8e9),
        seconds=st.floats(0, 100),
    ),
    max_size=20,
)


@given(SPANS)
def test_every_span_becomes_one_event_on_a_named_row(spans: list[Span]) -> None:
    document = json.loads(json.dumps(trace_events(spans)))
    events = document["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    drawn = [event for event in events if event["ph"] == "X"]
    found = sorted((processes[event["pid"]], rows[event["pid"], event["tid"]], event["name"]) for event in drawn)
    assert found == sorted((span.process, span.track, span.name) for span in spans)
    assert len(set(processes.values())) == len(processes)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in drawn)


def test_times_are_microseconds_since_the_first_span() -> None:
    spans = [
        Span(process="a 0", track="steps", name="second", begin_s=100.25, seconds=0.5),
        Span(process="b 0", track="steps", name="first", begin_s=100.0, seconds=2.0, details={"bytes": 7}),
    ]
    first, second = (event for event in trace_events(spans)["traceEvents"] if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"], first["args"]) == ("first", 0.0, 2e6, {"bytes": 7})
    assert (second["name"], second["ts"], second["dur"]) == ("second", 250000.0, 500000.0)
