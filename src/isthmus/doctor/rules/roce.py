"""Rules about RoCE: GIDs, trust, PFC, traffic classes, ECN, pauses, storms, drops, MTU."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from isthmus.doctor.case import Case, mode
from isthmus.doctor.env.values import as_integer
from isthmus.doctor.facts.host import HostSetting
from isthmus.doctor.facts.nccl import EnvSetting, NcclEvent
from isthmus.doctor.facts.network import Counters, Gid, IbPort, Netdev, NetdevMtu, PathProbe, PfcWatchdog, PriorityCounters, Qos
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.rules.samples import growths, single_samples

__all__ = ["RULES"]

_USUAL_DSCP = 26
_GID_CHOSEN_SINCE = (2, 21)


def _setting(case: Case, host: str, name: str) -> EnvSetting | None:
    settings = [s for s in case.of(EnvSetting) if s.name == name and not s.unset and s.at.host in {host, ""}]
    return settings[-1] if settings else None


def gid_index(case: Case) -> Iterator[Finding]:
    """ROCE-01."""
    tables = case.hosts(Gid)
    for setting in case.of(EnvSetting):
        if setting.name == "NCCL_IB_GID_INDEX" and not setting.unset:
            yield from _pinned(case, setting, tables.get(setting.at.host, tables.get("", [])))
    for gids in tables.values():
        yield from _table(gids)
    yield from _told_by_errors(case)


def _pinned(case: Case, setting: EnvSetting, gids: list[Gid]) -> Iterator[Finding]:
    index = as_integer(setting.value)
    if index is None or index < 0:
        return
    devices: dict[str, list[Gid]] = defaultdict(list)
    for gid in gids:
        devices[gid.device].append(gid)
    for device, table in devices.items():
        entry = next((g for g in table if g.index == index), None)
        wrong = (
            "has no such entry"
            if entry is None
            else "is RoCE v1"
            if entry.version == 1
            else "is link-local"
            if entry.link_local
            else ""
        )
        if wrong:
            what = f"NCCL_IB_GID_INDEX is {index}; on {device} that entry {wrong}."
            yield found("ROCE-01", what, setting.at, entry.at if entry else table[0].at, subject=device)
            return
    version = case.nccl_version(setting.at.host)
    literal = setting.value.strip() == str(index)
    if not devices and index == 0 and not literal:
        what = f"NCCL_IB_GID_INDEX={setting.value} is read as 0: GID 0 is pinned, on RoCE the link-local v1 entry."
        yield found("ROCE-01", what, setting.at, severity="WARN")
    elif version and version >= _GID_CHOSEN_SINCE:
        what = (
            f"NCCL_IB_GID_INDEX={setting.value} with NCCL {'.'.join(map(str, version))}, which chooses the GID itself since 2.21."
        )
        yield found("ROCE-01", what, setting.at, severity="WARN")
    elif not devices and version is None:
        what = (
            f"NCCL_IB_GID_INDEX={setting.value} is fixed; NCCL 2.21 and later choose themselves, and the index "
            f"can differ from host to host and pod to pod."
        )
        yield found("ROCE-01", what, setting.at, severity="INFO")


def _table(gids: list[Gid]) -> Iterator[Finding]:
    """What the tables themselves say: the index that would do, or that there is none."""
    devices: dict[tuple[str, int], list[Gid]] = defaultdict(list)
    for gid in gids:
        devices[(gid.device, gid.port)].append(gid)
    good = {key: {g.index for g in table if g.version == 2 and not g.link_local} for key, table in devices.items()}
    if not any(g.version for g in gids):
        return
    none = [key for key, indices in good.items() if not indices]
    common = {index for index in next(iter(good.values())) if all(index in indices for indices in good.values())}
    first = gids[0]
    if none:
        yield found(
            "ROCE-01", f"{none[0][0]} has no routable RoCE v2 GID.", devices[none[0]][0].at, subject=none[0][0], severity="WARN"
        )
    elif not common:
        words = ", ".join(f"{device} {sorted(indices)}" for (device, _), indices in list(good.items())[:4])
        yield found(
            "ROCE-01",
            f"No index is a routable RoCE v2 GID on every device ({words}): no fixed NCCL_IB_GID_INDEX can work.",
            first.at,
            severity="WARN",
        )
    elif min(common) > 3 and min(g.index for g in gids) > 0:
        what = (
            f"The GID tables start at index {min(g.index for g in gids)} (a pod); the routable RoCE v2 entry is "
            f"{min(common)} here and may differ in the next pod."
        )
        yield found("ROCE-01", what, first.at, severity="WARN")
    else:
        entry = next(g for g in gids if g.index == min(common))
        far = [g for g in gids if g.link_local or g.version == 1]
        what = (
            f"The routable RoCE v2 GID is index {min(common)} on {len(devices)} port{'s' * (len(devices) > 1)}; a "
            f"fixed NCCL_IB_GID_INDEX of another value"
        )
        what += f" ({', '.join(map(str, sorted({g.index for g in far})[:4]))} are v1 or link-local) does not reach other subnets."
        yield found("ROCE-01", what, entry.at, subject=entry.device, severity="INFO")


def _told_by_errors(case: Case) -> Iterator[Finding]:
    for events in case.hosts(NcclEvent).values():
        lost = [e for e in events if e.kind == "completion" and e.values.get("status") == "12"]
        local = [e for e in lost if e.values.get("local", "").lower().startswith("fe80")]
        old = [e for e in lost if "with error 12" in e.text]
        if local:
            yield found(
                "ROCE-01",
                "RDMA times out between link-local GIDs (fe80::), which no router forwards.",
                local[0].at,
                severity="WARN",
            )
        elif old:
            what = (
                "This NCCL is older than 2.21 (its error text says so): on RoCE it takes GID index 0 (v1) unless "
                "NCCL_IB_GID_INDEX says otherwise."
            )
            yield found("ROCE-01", what, old[0].at, severity="INFO")


def _traffic_class(case: Case, host: str) -> tuple[int, EnvSetting | HostSetting] | None:
    setting = _setting(case, host, "NCCL_IB_TC")
    if setting is not None and (value := as_integer(setting.value)) is not None:
        return value, setting
    device = [
        s
        for s in case.hosts(HostSetting).get(host, [])
        if s.name.startswith("traffic_class") and s.value.isdecimal() and int(s.value) > 0
    ]
    return (int(device[0].value), device[0]) if device else None


def _priority(qos: Qos, dscp: int) -> int:
    """dscp2prio; the default mapping is DSCP / 8 (mlnx_qos)."""
    return qos.priority_of_dscp.get(dscp, dscp // 8)


def trust(case: Case) -> Iterator[Finding]:
    """ROCE-02."""
    for host, blocks in case.hosts(Qos).items():
        mark = _traffic_class(case, host)
        for qos in blocks:
            if qos.trust == "pcp" and mark and mark[0] > 3:
                what = (
                    f"{qos.interface or 'The NIC'} trusts the VLAN priority, but traffic class {mark[0]} marks DSCP "
                    f"{mark[0] >> 2}."
                )
                yield found("ROCE-02", what, qos.places.get("trust", qos.at), mark[1].at, subject=qos.interface)


def pfc_set(case: Case) -> Iterator[Finding]:
    """ROCE-03."""
    for host, blocks in case.hosts(Qos).items():
        mark = _traffic_class(case, host)
        for qos in blocks:
            if not qos.pfc:
                continue
            dscp = mark[0] >> 2 if mark else _USUAL_DSCP
            wanted = _priority(qos, dscp)
            said: list[str] = []
            if 0 in qos.pfc:
                said.append("it is on for priority 0, the class of everything else")
            if len(qos.pfc) > 2:
                said.append(f"it is on for {len(qos.pfc)} priorities")
            if wanted not in qos.pfc and (mark or said):
                said.append(f"RoCE with DSCP {dscp} rides priority {wanted}, which has none")
            if said:
                what = f"PFC of {qos.interface or 'the NIC'} is on for {', '.join(map(str, qos.pfc))}: {'; '.join(said)}."
                yield found("ROCE-03", what, qos.places.get("pfc", qos.at), subject=qos.interface)


def traffic_class(case: Case) -> Iterator[Finding]:
    """ROCE-04."""
    for host, blocks in case.hosts(Qos).items():
        mark = _traffic_class(case, host)
        asked = [s for s in case.of(EnvSetting) if s.name.startswith("NCCL_") and s.at.host in {host, ""}]
        for qos in blocks:
            if not qos.pfc or (mark is None and not asked):
                continue
            value = mark[0] if mark else 0
            priority = _priority(qos, value >> 2)
            if priority not in qos.pfc:
                words = f"traffic class {value} (DSCP {value >> 2})" if mark else "no traffic class is set (0)"
                what = f"{words[0].upper() + words[1:]}: priority {priority}, while PFC is on {', '.join(map(str, qos.pfc))}."
                yield found(
                    "ROCE-04",
                    what,
                    (mark[1].at if mark else qos.at),
                    qos.places.get("pfc", qos.at),
                    subject=qos.interface,
                    severity="ERROR" if mark else "WARN",
                )
    for sample, share, losses in _on_priority_zero(case):
        if losses:
            what = (
                f"{share:.0%} of the bytes are on priority 0 while {losses} acknowledgement timeouts are counted: "
                f"RoCE shares the queue with everything else."
            )
            yield found("ROCE-04", what, sample.places.get("tx_prio0_bytes", sample.at), severity="WARN", subject=sample.device)


def _on_priority_zero(case: Case) -> Iterator[tuple[Counters, float, int]]:
    """(sample, share of priority 0, losses counted on the host)."""
    for sample in case.of(Counters):
        bytes_ = {n: sample.values.get(f"tx_prio{n}_bytes", 0) for n in range(8)}
        total = sum(bytes_.values())
        printed = sum(f"tx_prio{n}_bytes" in sample.values for n in range(8))
        if printed > 1 and total > 10**9 and bytes_[0] > 0.9 * total:
            near = case.hosts(Counters).get(sample.at.host, [])
            yield sample, bytes_[0] / total, sum(c.values.get("local_ack_timeout_err", 0) for c in near)


def ecn(case: Case) -> Iterator[Finding]:
    """ROCE-05."""
    for host, settings in case.hosts(HostSetting).items():
        pfc = next((qos.pfc for qos in case.hosts(Qos).get(host, []) if qos.pfc), (3,))
        for setting in settings:
            match = re.fullmatch(r"ecn (np|rp) (\S+) (\d)", setting.name)
            if match and setting.value == "0" and int(match[3]) in pfc:
                point = "notification" if match[1] == "np" else "reaction"
                yield found(
                    "ROCE-05", f"{match[2]}: the ECN {point} point is off on priority {match[3]}.", setting.at, subject=match[2]
                )


def paused(case: Case) -> Iterator[Finding]:
    """ROCE-06."""
    for growth in growths(case):
        for name in growth.last.values:
            if re.fullmatch(r"rx_prio\d_pause_duration", name) and growth.seconds and (grown := growth.of(name)):
                share = grown / 1e6 / growth.seconds
                if share > 0.01:
                    what = f"{growth.port}: sending on priority {name[7]} was paused {share:.1%} of {growth.seconds:.0f} s."
                    yield found(
                        "ROCE-06",
                        what,
                        growth.last.places[name],
                        growth.first.places[name],
                        subject=growth.port,
                        severity="ERROR" if share > 0.1 else "WARN",
                    )
    for sample in single_samples(case):
        pauses = {
            n: v
            for n, v in sample.values.items()
            if v and re.fullmatch(r"rx_prio\d_pause|rx_pause_frames|rx_pause_ctrl_phy|rx_global_pause", n)
        }
        if pauses:
            name, most = max(pauses.items(), key=lambda item: item[1])
            what = (
                f"{sample.device or 'The port'} counts {most} pauses ({name}); only their growth over time tells "
                f"whether they matter."
            )
            yield found("ROCE-06", what, sample.places[name], subject=sample.device, severity="INFO")


def global_pause(case: Case) -> Iterator[Finding]:
    """ROCE-07."""
    names = ("rx_pause_ctrl_phy", "rx_pause_frames", "rx_global_pause")
    for sample in case.of(Counters):
        name = next((n for n in names if sample.values.get(n)), "")
        per_priority = sum(v for n, v in sample.values.items() if re.fullmatch(r"rx_prio\d_pause", n))
        if name and not per_priority:
            what = f"{sample.device or 'The port'} received {sample.values[name]} global pause frames and no priority pauses."
            yield found("ROCE-07", what, sample.places[name], subject=sample.device)
            return
    for host, settings in case.hosts(HostSetting).items():
        on = [s for s in settings if s.name.startswith("pause ") and s.value == "on"]
        pfc = [qos for qos in case.hosts(Qos).get(host, []) if qos.pfc]
        if on and pfc:
            yield found(
                "ROCE-07", f"Global pause is on ({on[0].name}) beside PFC.", on[0].at, pfc[0].at, subject=on[0].name.split()[-1]
            )


def storm(case: Case) -> Iterator[Finding]:
    """ROCE-08."""
    for queues in case.hosts(PfcWatchdog).values():
        hit = [q for q in queues if q.detected > 0 or q.status == "stormed"]
        if hit:
            now = [q.queue for q in hit if q.status == "stormed"]
            what = f"PFC storms on {', '.join(q.queue for q in hit[:6])} ({sum(q.detected for q in hit)} detected)"
            what += (
                f"; {', '.join(now[:6])} {'is' if len(now) == 1 else 'are'} in one now." if now else "; all restored at present."
            )
            yield found("ROCE-08", what, *(q.at for q in hit), subject=hit[0].queue)
    for growth in growths(case):
        if grown := growth.of("tx_pause_storm_error_events"):
            yield found(
                "ROCE-08",
                f"{growth.port} itself sent a pause storm ({grown} new).",
                growth.last.places["tx_pause_storm_error_events"],
                subject=growth.port,
            )
        for name in growth.last.values:
            share = (
                (growth.of(name) / 1e6 / growth.seconds)
                if growth.seconds and re.fullmatch(r"tx_prio\d_pause_duration", name)
                else 0.0
            )
            if share > 0.5:
                what = (
                    f"{growth.port} told its switch to wait {share:.0%} of {growth.seconds:.0f} s on priority {name[7]}: "
                    f"this NIC is the source of a storm."
                )
                yield found("ROCE-08", what, growth.last.places[name], growth.first.places[name], subject=growth.port)
    for sample in single_samples(case):
        if number := sample.values.get("tx_pause_storm_error_events", 0):
            yield found(
                "ROCE-08",
                f"{sample.device} has sent {number} pause storms since its counters were cleared.",
                sample.places["tx_pause_storm_error_events"],
                subject=sample.device,
                severity="WARN",
            )


def drops(case: Case) -> Iterator[Finding]:
    """ROCE-09."""
    for rows in case.hosts(PriorityCounters).values():
        paused_priorities = {n for row in rows if row.kind.startswith("pfc") for n, value in enumerate(row.values) if value} | {
            3,
            4,
        }
        for row in rows:
            lost = {n: value for n, value in enumerate(row.values) if value and n in paused_priorities}
            if row.kind == "drops" and lost:
                n, value = max(lost.items(), key=lambda item: item[1])
                yield found(
                    "ROCE-09",
                    f"{row.interface} dropped {value} packets of priority group {n}, a lossless class.",
                    row.at,
                    subject=row.interface,
                )
    for growth in growths(case):
        for name in growth.last.values:
            grown = growth.of(name) if re.fullmatch(r"rx_prio[1-7]_(?:buf|cong)_discards?|rx_prio[1-7]_discards?", name) else 0
            if grown:
                yield found(
                    "ROCE-09",
                    f"{growth.port}: {name} grew by {grown}.",
                    growth.last.places[name],
                    growth.first.places[name],
                    subject=growth.port,
                )


def mtu(case: Case) -> Iterator[Finding]:
    """ROCE-10."""
    by_layer: dict[str, list[IbPort]] = defaultdict(list)
    for port in case.of(IbPort):
        if port.active_mtu_bytes and port.state == "Active":
            by_layer[f"{port.ca_type} {port.layer}"].append(port)
    for ports in by_layer.values():
        usual = mode(p.active_mtu_bytes for p in ports) or max(p.active_mtu_bytes or 0 for p in ports)
        odd = [p for p in ports if p.active_mtu_bytes != usual]
        if odd:
            hosts = len({p.at.host for p in ports})
            what = f"{odd[0].device} has active MTU {odd[0].active_mtu_bytes}, most ports {usual}" + (
                f" ({len(odd)} ports differ)." if len(odd) > 1 else "."
            )
            yield found("ROCE-10", what, odd[0].place("mtu"), subject=odd[0].device, severity="ERROR" if hosts > 1 else "WARN")
    yield from _logged_mtu(case)
    yield from _path_mtu(case)
    yield from _netdev_mtu(case)


def _logged_mtu(case: Case) -> Iterator[Finding]:
    logged = [e for e in case.of(NcclEvent) if e.kind == "qp"]
    sizes = {e.values["mtu"] for e in logged}
    if len(sizes) > 1:
        words = ", ".join(
            f"{128 << int(size)} bytes on {next(e for e in logged if e.values['mtu'] == size).at.host or 'one rank'}"
            for size in sorted(sizes)
        )
        yield found(
            "ROCE-10",
            f"NCCL connects queue pairs with different MTUs: {words}.",
            *(next(e for e in logged if e.values["mtu"] == s).at for s in sorted(sizes)),
        )
    for events in case.hosts(NcclEvent).values():
        protected = [e for e in events if (e.kind == "async" and "access violation" in e.values.get("why", ""))]
        lost = [e for e in events if e.kind == "completion" and e.values.get("status") == "12"]
        if protected or lost:
            which = "the violated access" if protected else "error 12"
            what = (
                f"A candidate for {which}: different MTUs on the two nodes, or one too large for the path; small "
                f"tests pass, large messages die."
            )
            yield found("ROCE-10", what, (protected or lost)[0].at, severity="INFO")


def _path_mtu(case: Case) -> Iterator[Finding]:
    for probe in case.of(PathProbe):
        if probe.packet_too_big:
            yield found(
                "ROCE-10",
                f"Packets of the tried size do not pass to {probe.peer or 'the peer'} unfragmented.",
                probe.at,
                subject=probe.peer,
            )


def _netdev_mtu(case: Case) -> Iterator[Finding]:
    for host, links in case.hosts(NetdevMtu).items():
        rdma = {n.interface for n in case.hosts(Netdev).get(host, [])} | {g.device for g in ()}
        small = [
            link
            for link in links
            if link.interface in rdma and link.up and link.mtu_bytes < 4200 and not link.interface.startswith("ib")
        ]
        if small:
            what = (
                f"{small[0].interface} has MTU {small[0].mtu_bytes}: RDMA uses at most "
                f"{_verbs_mtu(small[0].mtu_bytes)} bytes of 4096 (about 5 %)."
            )
            yield found("ROCE-10", what, small[0].at, subject=small[0].interface, severity="INFO")


def _verbs_mtu(bytes_: int) -> int:
    return next((size for size in (4096, 2048, 1024, 512) if bytes_ >= size + 64), 256)


def unmarked(case: Case) -> Iterator[Finding]:
    """ROCE-11."""
    for sample, share, losses in _on_priority_zero(case):
        pfc: Mapping[str, Qos] = {
            qos.interface: qos for qos in case.hosts(Qos).get(sample.at.host, []) if qos.pfc and 0 not in qos.pfc
        }
        severity = "ERROR" if pfc else "WARN" if losses else "INFO"
        why = (
            "PFC is on another priority"
            if pfc
            else f"{losses} acknowledgement timeouts are counted"
            if losses
            else "right only where RoCE may lose packets"
        )
        what = f"{share:.1%} of the bytes of {sample.device or 'the port'} are on priority 0; {why}."
        yield found("ROCE-11", what, sample.places.get("tx_prio0_bytes", sample.at), subject=sample.device, severity=severity)


def disagreeing(case: Case) -> Iterator[Finding]:
    """NET-01."""
    for rows in case.hosts(PriorityCounters).values():
        hardware = [r for r in rows if r.kind.startswith("hardware") and any(r.values)]
        shown = [r for r in rows if r.kind in {"pfc-rx", "pfc-tx"}]
        if hardware and shown and not any(any(r.values) for r in shown):
            what = f"pfcstat shows 0 on {len(shown)} ports, the hardware counted {max(hardware[0].values)}"
            what += "; the table is a difference since a clear." if any(r.since_clear for r in shown) else "."
            yield found("NET-01", what, hardware[0].at, shown[0].at)


RULES = {
    "ROCE-01": gid_index,
    "ROCE-02": trust,
    "ROCE-03": pfc_set,
    "ROCE-04": traffic_class,
    "ROCE-05": ecn,
    "ROCE-06": paused,
    "ROCE-07": global_pause,
    "ROCE-08": storm,
    "ROCE-09": drops,
    "ROCE-10": mtu,
    "ROCE-11": unmarked,
    "NET-01": disagreeing,
}
