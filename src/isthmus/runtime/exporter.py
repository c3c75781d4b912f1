"""Prometheus metrics of one rank, on loopback unless told otherwise: what crosses between regions apart from what stays inside.

Counters follow the rank's own metrics lines; figures of the links are read from the kernel and the rails at each scrape.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isthmus.errors import InputError

if TYPE_CHECKING:
    from isthmus.runtime.wan.rail import LinkUse

__all__ = ["Exporter"]

_STEP_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Exporter:
    """Serves /metrics from a thread of its own until `close`.

    Args:
        address: (host, port) to listen on.
        labels: On every metric: region and rank.
        links: Called at each scrape: what each link did, by peer region.

    Raises:
        InputError: The port cannot be had.
    """

    def __init__(
        self, address: tuple[str, int], labels: Mapping[str, str], links: Callable[[], "Mapping[str, LinkUse]"]
    ) -> None:
        registry = CollectorRegistry()
        names, values = list(labels), list(labels.values())

        def own(kind: Any, name: str, text: str, **more: Any) -> Any:
            return kind(f"isthmus_{name}", text, names, registry=registry, **more).labels(*values)

        self._steps = own(Counter, "steps", "Optimizer steps.")
        self._step_s = own(Histogram, "step_seconds", "Wall time of a step.", buckets=_STEP_S)
        self._tokens = own(Counter, "tokens", "Tokens this rank trained on.")
        self._loss = own(Gauge, "loss", "Training loss of the last step, nats.")
        self._waiting_s = own(Counter, "waiting_seconds", "Time training waited for gradients or outer syncs.")
        self._syncs = own(Counter, "syncs", "Outer syncs applied, or replicas proven equal.")
        self._sync_s = own(Counter, "sync_seconds", "Time from an outer sync's first byte to its result.")
        self._generation = own(Gauge, "generation", "Number of the generation of regions that take part.")
        self._regions = own(Gauge, "regions", "Regions in that generation.")
        self._discarded = own(Counter, "discarded_tokens", "Tokens trained here that were given up on rejoining.")
        registry.register(_Links(names, values, links))
        try:
            self._server, self._thread = start_http_server(address[1], addr=address[0], registry=registry)
        except OSError as error:
            raise InputError(
                "ISTHMUS_EXPORT", f"{address[0]}:{address[1]} cannot be listened on: {error.strerror}", "choose a free port"
            ) from None

    def observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take in one metrics line of this rank."""
        match kind:
            case "step":
                self._steps.inc()
                self._step_s.observe(fields["seconds"])
                self._tokens.inc(fields["tokens"])
                self._loss.set(fields["loss"])
                self._waiting_s.inc(fields["exposed_s"])
            case "sync":
                self._syncs.inc()
                self._sync_s.inc(fields["seconds"])
            case "round" | "regroup":
                self._generation.set(fields["generation"])
                self._regions.set(len(fields["regions"]))
            case "discarded":
                self._discarded.inc(fields["tokens"])
            case _:
                pass

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _Links(Collector):
    """The links' figures, fresh at every scrape."""

    def __init__(self, names: list[str], values: list[str], links: "Callable[[], Mapping[str, LinkUse]]") -> None:
        self._names, self._values, self._links = [*names, "peer"], values, links

    def collect(self) -> Iterable[Metric]:
        sent = self._counter("link_sent_bytes", "Bytes sent to another region, frame headers included.")
        received = self._counter("link_received_bytes", "Bytes received from another region, frame headers included.")
        retransmits = self._counter("link_retransmits", "TCP segments sent again.")
        busy = self._counter("link_busy_seconds", "Time with something to send to that region.")
        stalled = self._counter("link_stall_seconds", "Time received data waited because nobody had asked for it.")
        goodput = GaugeMetricFamily("isthmus_link_goodput_bytes_per_second", "Payload over busy time.", labels=self._names)
        rtt = GaugeMetricFamily("isthmus_link_rtt_seconds", "Smoothed round trip.", labels=self._names)
        for peer, use in self._links().items():
            labels = [*self._values, peer]
            sent.add_metric(labels, use.frame_bytes_sent)
            received.add_metric(labels, use.frame_bytes_received)
            retransmits.add_metric(labels, use.retransmits)
            busy.add_metric(labels, use.busy_s)
            stalled.add_metric(labels, use.stall_s)
            goodput.add_metric(labels, use.goodput_bytes_per_s)
            rtt.add_metric(labels, use.rtt_s)
        return [sent, received, retransmits, busy, stalled, goodput, rtt]

    def _counter(self, name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"isthmus_{name}", text, labels=self._names)
