"""README.md of the observability bundle."""

from isthmus.deploy.observability.rules import Pace, Planned, alerts
from isthmus.deploy.observability.scrape import THIS_NODE
from isthmus.deploy.request import Request
from isthmus.units import show_rate, show_seconds

__all__ = ["readme"]


def readme(request: Request, planned: Planned, pace: Pace) -> str:
    """What is here, what to do with it in order, and what each alert means."""
    receiver = request.sites.document.prometheus
    assert receiver is not None
    port = receiver.rpartition(":")[2]
    rows = "\n".join(
        f"| {link.src} to {link.dst} | {show_rate(link.rate_bytes_per_s)} | {show_seconds(link.rtt_s)}"
        f" | {show_rate(link.goodput_bytes_per_s)} |"
        for link in planned.links
    )
    seen: dict[str, str] = {}
    for alert in alerts(planned, pace):
        name, severity = alert["alert"], alert["labels"]["severity"]
        seen.setdefault(name, f"| `{name}` | {severity} | {alert['annotations']['action']} |")
    told = "\n".join(seen.values())
    return f"""# Watching {planned.name}

Written by `isthmus deploy --to observability`. Ranks export on loopback only, so an agent on each node collects from them and
sends to one Prometheus at {receiver}, which records, compares with the plan and raises alarms.

## What to do, in this order

1. On the machine of {receiver}: `cd central && promtool check config prometheus.yml && promtool test rules rules_test.yml`,
   then `prometheus --config.file=prometheus.yml --web.listen-address={receiver} --web.enable-remote-write-receiver`
   (before release 2.33: `--enable-feature=remote-write-receiver`). Nothing here asks who sends: keep port {port} inside your
   network, or put TLS and a password in front (`--web.config.file`).
2. On every node: copy `node/` there, `cp targets/REGION-NODE.json {THIS_NODE}`, then
   `prometheus --enable-feature=agent --config.file=prometheus.yml --web.listen-address=127.0.0.1:9090`
   (from release 3.0 on: `--agent`).
3. Start the run with `export_port` in sites.yaml, as `isthmus deploy --to slurm` and its like write it.
4. In Grafana: Dashboards, Import, `grafana/isthmus.json`; choose the Prometheus above. Without Grafana:
   `isthmus watch` shows the same figures in a terminal on a node.

## What was planned

A step of {show_seconds(planned.step_s)}, {planned.tokens_per_s:,.0f} tokens/s in all.

| link | rate | RTT | goodput of the plan's exchanges |
|---|---|---|---|
{rows}

Goodput is bytes over the time with something to send; an exchange takes its bytes at the link's rate and one round trip.

## Alerts, after {pace.hold_s} s, over the last {pace.window_s} s

| alert | severity | what to do |
|---|---|---|
{told}
"""
