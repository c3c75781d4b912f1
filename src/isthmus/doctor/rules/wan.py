"""Rules about paths between sites: windows against rate x RTT, loss, timeouts, lossless classes, asymmetry."""

import math
import re
from collections.abc import Iterator

from isthmus.doctor.case import Case
from isthmus.doctor.env.values import as_integer
from isthmus.doctor.facts.host import HostSetting
from isthmus.doctor.facts.nccl import EnvSetting, NcclEvent
from isthmus.doctor.facts.network import IbPort, PathProbe, Qos
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.text import Place

__all__ = ["RULES"]

_BUFFSIZE, _USUAL_CHANNELS = 4 * 2**20, 16
_LONG_S = 1e-3  # a round trip above this is no cluster network
_HEADROOM_BYTES = 2**20
_ROCE_PACKET_BYTES = 4096
_TOLERATED_S = 1.0


def _value(case: Case, *names: str) -> tuple[int, Place] | None:
    for name in names:
        settings = [s for s in case.of(EnvSetting) if s.name == name and not s.unset]
        if settings and (value := as_integer(settings[-1].value)) is not None:
            return value, settings[-1].at
    return None


def _path(case: Case) -> tuple[float, float | None, Place | None, str] | None:
    """(RTT, rate in bytes/s or None, evidence, peer) of the longest path: measured, else described."""
    probes = [p for p in case.of(PathProbe) if p.rtt_s is not None and p.rtt_s > _LONG_S]
    rate = case.expected.wan_rate_bytes_per_s
    if probes:
        worst = max(probes, key=lambda p: p.rtt_s or 0.0)
        return worst.rtt_s or 0.0, rate, worst.at, worst.peer
    if case.expected.wan_rtt_s is not None and case.expected.wan_rtt_s > _LONG_S:
        return case.expected.wan_rtt_s, rate, None, ""
    return None


def rdma_window(case: Case) -> Iterator[Finding]:
    """WAN-01."""
    path = _path(case)
    ports = [p for p in case.of(IbPort) if p.state == "Active" and p.rate_gbit_per_s]
    uses_rdma = any(e.kind == "channel" and e.values.get("network", "").startswith("IB") for e in case.of(NcclEvent)) or bool(
        ports
    )
    if path is None or not uses_rdma:
        return
    rtt_s, rate, at, peer = path
    if rate is None and ports:
        rate = (ports[0].rate_gbit_per_s or 0.0) * 1e9 / 8
    if not rate:
        return
    size = _value(case, "NCCL_BUFFSIZE")
    channels = next((int(e.values["coll"]) for e in case.of(NcclEvent) if e.kind == "channels"), None)
    window = (size[0] if size else _BUFFSIZE) * (channels or _USUAL_CHANNELS)
    if window < rate * rtt_s:
        guess = "" if channels else " (16 channels assumed)"
        what = (
            f"The path holds {rate * rtt_s / 1e6:.0f} MB ({rate * 8 / 1e9:.0f} Gb/s x {rtt_s * 1e3:.3g} ms); "
            f"NCCL's window is {window / 1e6:.0f} MB{guess}: "
        )
        what += f"at most {window / rtt_s * 8 / 1e9:.3g} Gb/s."
        yield found(
            "WAN-01",
            what,
            *[place for place in (at, size[1] if size else None, ports[0].place("rate") if ports else None) if place],
            subject=peer,
        )


def tcp_window(case: Case) -> Iterator[Finding]:
    """WAN-02."""
    path = _path(case)
    limits: dict[str, tuple[int, Place]] = {}
    for setting in case.of(HostSetting):
        if setting.name in {"sysctl net.ipv4.tcp_rmem", "sysctl net.ipv4.tcp_wmem"} and (
            words := re.findall(r"\d{1,15}", setting.value)
        ):
            limits[setting.name] = (int(words[-1]), setting.at)
    if path is None or path[1] is None or not limits:
        return
    rtt_s, rate, at, peer = path
    sockets = (_value(case, "NCCL_SOCKET_NTHREADS") or (1, None))[0] * (_value(case, "NCCL_NSOCKS_PERTHREAD") or (1, None))[0]
    smallest, place = min(limits.values(), key=lambda item: item[0])
    window = sockets * smallest / 2
    if rate and window < rate * rtt_s:
        what = (
            f"The path holds {rate * rtt_s / 1e6:.0f} MB; {sockets} socket{'s' * (sockets > 1)} of "
            f"{smallest / 1e6:.3g} MB (half of it usable) carry "
        )
        what += f"{window / rtt_s * 8 / 1e9:.3g} Gb/s at most."
        yield found("WAN-02", what, place, *([at] if at else []), subject=peer)


def loss(case: Case) -> Iterator[Finding]:
    """WAN-03."""
    rdma = any(p.state == "Active" and p.layer == "Ethernet" for p in case.of(IbPort))
    for probe in case.of(PathProbe):
        if not probe.loss or probe.rtt_s is None:
            if probe.loss and probe.loss > 0.01:
                yield found(
                    "WAN-03",
                    f"{probe.loss:.2%} of the packets to {probe.peer or 'the peer'} are lost.",
                    probe.at,
                    subject=probe.peer,
                )
            continue
        rate = case.expected.wan_rate_bytes_per_s or probe.rate_bytes_per_s
        mathis = 1.22 * (probe.mss_bytes or 1448) / (probe.rtt_s * math.sqrt(probe.loss))
        flight = (rate or 0.0) * probe.rtt_s / _ROCE_PACKET_BYTES * probe.loss
        if rdma and flight > 0.05:
            what = (
                f"{probe.loss:.3g} of the packets to {probe.peer} are lost: RoCE sends the whole window again "
                f"{flight:.2g} times a round trip."
            )
            yield found("WAN-03", what, probe.at, subject=probe.peer)
        elif (rate and rate > mathis and case.expected.wan_rate_bytes_per_s) or probe.loss > 0.01:
            what = (
                f"{probe.loss:.3g} of the packets to {probe.peer or 'the peer'} are lost: one loss-based TCP stream "
                f"carries {mathis * 8 / 1e6:.3g} Mb/s at {probe.rtt_s * 1e3:.3g} ms."
            )
            yield found("WAN-03", what, probe.at, subject=probe.peer)


def give_up(case: Case) -> Iterator[Finding]:
    """WAN-04."""
    timeout = _value(case, "NCCL_IB_TIMEOUT")
    if timeout is None or not 0 < timeout[0] < 32:
        return
    retries = (_value(case, "NCCL_IB_RETRY_CNT") or (7, None))[0]
    total_s = 4.096e-6 * 2 ** timeout[0] * min(retries, 7)
    path = _path(case)
    if total_s < _TOLERATED_S or (path and total_s < 10 * path[0]):
        what = (
            f"RDMA gives up after {total_s:.3g} s (4.096 us x 2^{timeout[0]} x {min(retries, 7)}): a re-route of "
            f"a second ends the job."
        )
        yield found("WAN-04", what, timeout[1])


def lossless_wan(case: Case) -> Iterator[Finding]:
    """WAN-05."""
    path = _path(case)
    pfc = [qos for qos in case.of(Qos) if qos.pfc]
    if path and path[1] and pfc and path[0] * path[1] > _HEADROOM_BYTES and case.expected.wan_rtt_s is not None:
        what = (
            f"PFC is on while the path holds {path[0] * path[1] / 1e6:.0f} MB; a switch keeps about 1 MiB of "
            f"headroom. Right inside the site, wrong on the WAN port."
        )
        yield found("WAN-05", what, pfc[0].places.get("pfc", pfc[0].at), severity="WARN", subject=pfc[0].interface)


def asymmetric(case: Case) -> Iterator[Finding]:
    """WAN-06."""
    for probe in case.of(PathProbe):
        if probe.oneway_s and abs(probe.oneway_s[0] - probe.oneway_s[1]) > 0.2 * sum(probe.oneway_s):
            there, back = probe.oneway_s
            yield found("WAN-06", f"{there * 1e3:.3g} ms there, {back * 1e3:.3g} ms back.", probe.at, subject=probe.peer)
        elif (
            probe.rtt_s
            and probe.rtt_s > _LONG_S
            and probe.rtt_s_spread
            and probe.rtt_s_spread > 0.2 * probe.rtt_s
            and probe.mss_bytes is None
        ):
            what = (
                f"Round trips to {probe.peer or 'the peer'} spread by {probe.rtt_s_spread * 1e3:.3g} ms around "
                f"{probe.rtt_s * 1e3:.3g} ms: several paths, or queues."
            )
            yield found("WAN-06", what, probe.at, subject=probe.peer)


RULES = {
    "WAN-01": rdma_window,
    "WAN-02": tcp_window,
    "WAN-03": loss,
    "WAN-04": give_up,
    "WAN-05": lossless_wan,
    "WAN-06": asymmetric,
}
