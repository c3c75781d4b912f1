"""Rules about NCCL and torch logs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from isthmus.doctor.case import Case
from isthmus.doctor.facts.host import Version
from isthmus.doctor.facts.kernel import KernelEvent
from isthmus.doctor.facts.nccl import EnvSetting, GdrState, NcclEvent, NcclInterfaces, NcclNics, RasReport, Watchdog
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.text import Place

__all__ = ["RULES", "many_nodes"]

_LOCAL = re.compile(
    r"(?:lo|docker\w*|veth\w*|br-\w+|virbr\w*|tun\w*|tap\w*|wg\w*|cni\w*|flannel\w*|cali\w*|CloudflareWARP|tailscale\w*|zt\w+)$"
)
_MEANT_PLUGINS = ("FastSocket", "GPUDirectTCPX", "gIB", "AWS", "OFI", "Libfabric", "IB", "UCX", "SHARP", "RDMA", "Ultra")


def _events(case: Case, *kinds: str) -> dict[str, list[NcclEvent]]:
    grouped: dict[str, list[NcclEvent]] = defaultdict(list)
    for event in case.of(NcclEvent):
        if event.kind in kinds:
            grouped[event.at.host].append(event)
    return grouped


def _since(event: NcclEvent) -> tuple[float | None, str]:
    return None, event.when


def many_nodes(case: Case) -> bool | None:
    """Does the job span nodes? None when nothing says so."""
    told = [int(e.values["nodes"]) for e in case.of(NcclEvent) if e.kind == "comm" and e.values.get("nodes")]
    if told:
        return max(told) > 1
    hosts = {fact.process.split(":")[0] for fact in [*case.of(NcclEvent), *case.of(NcclInterfaces)] if ":" in fact.process}
    return True if len(hosts) > 1 else None


def _shown(facts: Sequence[IbPort | NcclInterfaces | NcclEvent]) -> list[Place]:
    return [fact.place("state") if isinstance(fact, IbPort) else fact.at for fact in facts]


def sockets(case: Case) -> Iterator[Finding]:
    """LOG-01."""
    networks = [e.values.get("network", "") for e in case.of(NcclEvent) if e.kind in {"network", "assigned"}]
    if any(network != "Socket" and any(word.lower() in network.lower() for word in _MEANT_PLUGINS) for network in networks):
        return
    told = [
        e
        for e in case.of(NcclEvent)
        if (e.kind in {"network", "assigned", "channel"} and e.values.get("network") == "Socket") or e.kind == "no-ib"
    ]
    if not told or any(e.kind == "channel" and e.values.get("network") != "Socket" for e in case.of(NcclEvent)):
        return
    ports = [p for p in case.of(IbPort) if p.state == "Active"]
    over_ib = [i for i in case.of(NcclInterfaces) if any(re.match(r"ib", name) for name, _ in i.interfaces)]
    plugins = [e for e in case.of(NcclEvent) if e.kind == "plugin-loaded" and "IB" in e.values.get("network", "")]
    many = many_nodes(case)
    exists = ports or over_ib or plugins
    severity = "INFO" if many is False else "ERROR" if exists else "WARN"
    what = "NCCL uses TCP sockets" if any(e.kind != "no-ib" for e in told) else "NCCL found no RDMA device"
    reason = (
        f"{ports[0].device} is Active"
        if ports
        else "an InfiniBand interface is there"
        if over_ib
        else "an RDMA plugin is loaded"
        if plugins
        else ""
    )
    what += (
        f", although {reason}."
        if reason
        else "; on one node that costs nothing."
        if many is False
        else "; right only where the nodes have no RDMA."
    )
    yield found("LOG-01", what, told[0].at, *_shown(exists[:1]), severity=severity, since=_since(told[0]))


def interfaces(case: Case) -> Iterator[Finding]:
    """LOG-02."""
    many = many_nodes(case)
    seen: set[str] = set()
    for fact in case.of(NcclInterfaces):
        for name, address in fact.interfaces:
            bridge = address.startswith(("172.17.", "172.18."))
            local = _LOCAL.match(name) or address.startswith(("127.", "169.254."))
            if (not local and not bridge) or name in seen or (bridge and many is None):
                continue
            seen.add(name)
            severity = "INFO" if many is False or (many is None and address.startswith("127.")) else "ERROR" if many else "WARN"
            words = "docker's bridge network" if bridge and not local else "not reachable from other nodes"
            what = f"NCCL uses {name} ({address}), {words}" + (
                "; the job has one node, so it does no harm." if many is False else "."
            )
            yield found("LOG-02", what, fact.at, subject=name, severity=severity)


def no_interface(case: Case) -> Iterator[Finding]:
    """LOG-03."""
    for events in _events(case, "no-interface").values():
        setting = next((s for s in case.of(EnvSetting) if s.name == "NCCL_SOCKET_IFNAME"), None)
        named = f" NCCL_SOCKET_IFNAME is {setting.value}." if setting else ""
        yield found(
            "LOG-03",
            f"NCCL finds no interface to use.{named}",
            events[0].at,
            *([setting.at] if setting else []),
            subject=setting.value if setting else "",
            since=_since(events[0]),
        )


def unreachable(case: Case) -> Iterator[Finding]:
    """LOG-04."""
    for events in _events(case, "connect").values():
        peers = Counter(e.values.get("peer", "") for e in events)
        peer, times = peers.most_common(1)[0]
        first = next(e for e in events if e.values.get("peer", "") == peer)
        why = first.values.get("why", "").strip()
        meaning = (
            "the peer's process is gone or its port closed" if "refused" in why or "reset" in why else "a firewall or the routing"
        )
        what = f"Connecting to {peer or 'a peer'} fails: {why} ({meaning}); {times} of {len(events)} such lines."
        yield found("LOG-04", what, *(e.at for e in events), subject=peer, since=_since(first))


def gdr_off(case: Case) -> Iterator[Finding]:
    """LOG-05."""
    for host, states in case.hosts(GdrState).items():
        on = {(s.process, s.nic) for s in states if s.enabled}
        off = [s for s in states if not s.enabled and (s.process, s.nic) not in on]
        missing = [s for s in off if s.distance is None]
        far = [s for s in off if s.distance is not None]
        if missing:
            nics = list(dict.fromkeys(s.nic for s in missing))
            yield found(
                "LOG-05", f"GPUDirect RDMA is disabled for {', '.join(nics[:8])}.", *(s.at for s in missing), subject=nics[0]
            )
        elif far and not any(s.enabled for s in states):
            what = (
                f"GPUDirect RDMA is not used: GPU {far[0].gpu or '?'} and NIC {far[0].nic} are too far apart (path "
                f"type {far[0].distance}). Topology, not a module."
            )
            yield found("LOG-05", what, far[0].at, subject=host, severity="INFO")
    for host, events in _events(case, "channel").items():
        rdma = [e for e in events if e.values["network"].startswith("IB")]
        if rdma and not any(e.values.get("gdr") for e in rdma) and host not in case.hosts(GdrState):
            yield found("LOG-05", f"None of {len(rdma)} RDMA channels uses GPUDirect (no /GDRDMA).", rdma[0].at, severity="WARN")


def _completions(case: Case, *statuses: str) -> dict[str, list[NcclEvent]]:
    return {
        h: mine
        for h, events in _events(case, "completion").items()
        if (mine := [e for e in events if e.values["status"] in statuses])
    }


def no_answer(case: Case) -> Iterator[Finding]:
    """LOG-06: over all hosts, so that the peer that most of them name stands out."""
    events = [e for group in _completions(case, "12").values() for e in group]
    if not events:
        return
    peers = Counter(e.values["peer"] for e in events if e.values.get("peer"))
    peer, times = peers.most_common(1)[0] if peers else ("", 0)
    what = f"RDMA error 12 (retries exhausted) {len(events)} time{'s' * (len(events) > 1)}"
    if len(peers) > 1 and times * 2 <= sum(peers.values()):
        what += f", against {len(peers)} different peers: look at the switch, MTU and GIDs first."
        peer = ""
    else:
        named = f"all name {peer}" if times == len(events) else f"{times} name {peer}"
        what += f"; {named}: that node or its link is the first suspect." if peer else "; this version does not name the peer."
    first = next((e for e in events if e.values.get("peer") == peer), events[0])
    yield found("LOG-06", what, first.at, *(e.at for e in events if e is not first), subject=peer, since=_since(first))


def flushed(case: Case) -> Iterator[Finding]:
    """LOG-07."""
    for events in _completions(case, "5").values():
        what = (
            f"{len(events)} work request{'s were' if len(events) > 1 else ' was'} flushed (error 5): a "
            f"consequence, look at the first other error."
        )
        yield found("LOG-07", what, *(e.at for e in events), subject=events[0].values.get("peer", ""), since=_since(events[0]))


def protection(case: Case) -> Iterator[Finding]:
    """LOG-08."""
    names = {"4": "local protection", "9": "remote invalid request", "10": "remote access", "11": "remote operation"}
    wrong = [e for group in _completions(case, *names).values() for e in group]
    violated = [e for group in _events(case, "async").values() for e in group if "access violation" in e.values.get("why", "")]
    if violated or wrong:
        first = (violated or wrong)[0]
        words = [f"{names[e.values['status']]} error (status {e.values['status']})" for e in wrong[:1]] + [
            "local access violation" for _ in violated[:1]
        ]
        device = first.values.get("device") or first.values.get("hca", "")
        yield found(
            "LOG-08",
            (
                f"RDMA {' and '.join(words)}{' on ' + device if device else ''}: what the NIC may access is not what "
                f"it was told to access."
            ),
            first.at,
            *(e.at for e in [*violated, *wrong] if e is not first),
            subject=device,
            since=_since(first),
        )


def queue_pairs(case: Case) -> Iterator[Finding]:
    """LOG-09."""
    for events in _events(case, "modify-qp").values():
        why = events[0].values.get("why", "").lower()
        if "110" in why or "timed out" in why:
            meaning = "no path to the peer on that rail"
        elif "22" in why or "invalid" in why:
            meaning = "the GID does not fit (index, version)"
        elif "unreach" in why or "101" in why or "113" in why or "no route" in why:
            meaning = "no route to the remote GID"
        else:
            meaning = "see the verbs error"
        yield found(
            "LOG-09",
            f"ibv_modify_qp fails: {events[0].values.get('why', '').strip()} ({meaning}).",
            *(e.at for e in events),
            since=_since(events[0]),
        )


def device_events(case: Case) -> Iterator[Finding]:
    """LOG-10."""
    levels = (
        ("port error", "ERROR"),
        ("device fatal", "ERROR"),
        ("gid table", "WARN"),
        ("client reregistration", "INFO"),
        ("port active", "INFO"),
        ("lid change", "WARN"),
    )
    for host, events in _events(case, "async").items():
        for words, severity in levels:
            mine = [e for e in events if words in e.values.get("why", "").lower()]
            if mine:
                device = mine[0].values.get("device", "")
                what = f"{device or 'An RDMA port'} of {host or 'this host'}: {words}, {len(mine)} report{'s' * (len(mine) > 1)}."
                yield found(
                    "LOG-10", what, *(e.at for e in mine), subject=device or host, severity=severity, since=_since(mine[0])
                )


def shared_memory(case: Case) -> Iterator[Finding]:
    """LOG-11."""
    for events in _events(case, "shm").values():
        yield found(
            "LOG-11",
            f"NCCL cannot get shared memory: {events[0].values.get('why', '').strip()[:120]}",
            *(e.at for e in events),
            since=_since(events[0]),
        )


def pinned(case: Case) -> Iterator[Finding]:
    """LOG-12."""
    for events in _events(case, "verbs-memory").values():
        short = [
            e for e in events if re.search(r"annot allocate|ENOMEM|\b12\b|out of memory", e.values.get("why", ""), re.IGNORECASE)
        ]
        if short:
            yield found(
                "LOG-12",
                f"{short[0].values['call']} fails for want of memory: the locked-memory limit.",
                *(e.at for e in short),
                since=_since(short[0]),
            )


def versions(case: Case) -> Iterator[Finding]:
    """LOG-13."""
    said = [e for group in _events(case, "version-mismatch").values() for e in group]
    if said:
        yield found("LOG-13", f"NCCL: {said[0].values.get('why', '')[:160]}", *(e.at for e in said), since=_since(said[0]))
        return
    seen: dict[str, Place] = {}
    image: dict[str, Place] = {}
    for version in case.of(Version):
        if version.software == "nccl":
            (image if version.rank == "image" else seen).setdefault(version.version, version.at)
    if len(seen) > 1:
        words = ", ".join(f"{version} ({place.host or place})" for version, place in seen.items())
        yield found("LOG-13", f"NCCL versions differ: {words}.", *seen.values())
    elif image and seen and not set(image) & set(seen):
        what = (
            f"The image's own libnccl is {next(iter(image))}, torch brings {next(iter(seen))}: which one is "
            f"loaded depends on LD_LIBRARY_PATH and LD_PRELOAD."
        )
        yield found("LOG-13", what, *image.values(), *seen.values(), severity="WARN")


def shared_gpu(case: Case) -> Iterator[Finding]:
    """LOG-14."""
    for events in _events(case, "duplicate-gpu").values():
        v = events[0].values
        what = (
            f"Ranks {v['first']} and {v['second']} both use GPU {v['device']}."
            if v.get("first")
            else "Several ranks use one GPU."
        )
        yield found("LOG-14", what, *(e.at for e in events), since=_since(events[0]))


def timeouts(case: Case) -> Iterator[Finding]:
    """LOG-15."""
    groups: dict[str, list[Watchdog]] = defaultdict(list)
    for dog in case.of(Watchdog):
        groups[dog.group].append(dog)
    lagging = [e for group in _events(case, "lagging").values() for e in group]
    for name, dogs in groups.items():
        yield _timeout(name, dogs, lagging)
    for events in _events(case, "mismatched-collective").values():
        rank = events[0].values.get("rank", "")
        what = (
            f"Ranks call different collectives or sizes{f', at or around rank {rank}' if rank else ''}: the "
            f"program, not the network."
        )
        yield found("LOG-15", what, events[0].at, subject=f"rank {rank}" if rank else "", since=_since(events[0]))


def _timeout(name: str, dogs: list[Watchdog], lagging: list[NcclEvent]) -> Finding:
    first = dogs[0]
    where = f" of {name}" if name else ""
    what = (
        f"{first.operation or 'A collective'} number {first.sequence}{where} timed out on "
        f"{len({d.rank for d in dogs})} rank{'s' * (len({d.rank for d in dogs}) > 1)}"
    )
    subject = ""
    same = {(d.operation, d.elements) for d in dogs if d.sequence == first.sequence}
    lowest = min(dogs, key=lambda d: d.sequence)
    if lagging:
        subject = f"rank {lagging[0].values['ranks']}"
        what += f"; the desync report names rank {lagging[0].values['ranks']}."
    elif len(same) > 1:
        what += "; operations or sizes differ at the same number: the program calls different collectives."
    elif len({d.sequence for d in dogs}) > 1 and name:
        subject = f"rank {lowest.rank}"
        what += f"; rank {lowest.rank} is behind, at {lowest.sequence}."
    elif len({d.sequence for d in dogs}) > 1:
        what += "; the numbers differ, but this version does not print the process group, so they cannot be compared."
    elif len({d.rank for d in dogs}) == 1:
        what += "; only this rank reports it: look at what the others did at that number."
    else:
        what += "; all wait at the same number: look for a rank that is silent here, then at network and GPU."
    return found("LOG-15", what, first.at, *(e.at for e in lagging), *(d.at for d in dogs[1:]), subject=subject)


def closed(case: Case) -> Iterator[Finding]:
    """LOG-16."""
    for events in _events(case, "peer-closed").values():
        peer = Counter(e.values.get("peer", "") for e in events).most_common(1)[0][0]
        yield found(
            "LOG-16",
            (
                f"{peer or 'A peer'} closed its connection ({len(events)} line{'s' * (len(events) > 1)}): a "
                f"consequence, its own log has the reason."
            ),
            *(e.at for e in events),
            subject=peer,
            since=_since(events[0]),
        )


def nic_counts(case: Case) -> Iterator[Finding]:
    """LOG-17."""
    said = [e for group in _events(case, "nic-count").values() for e in group]
    if said:
        yield found("LOG-17", f"NCCL: ranks see different numbers of NICs{said[0].values.get('why', '')[:120]}", said[0].at)
    counts: dict[str, tuple[int, Place]] = {}
    for nics in case.of(NcclNics):
        host = nics.at.host or nics.process.split(":")[0]
        if host:
            counts.setdefault(host, (len(nics.nics), nics.at))
    most = max((count for count, _ in counts.values()), default=0)
    for host, (count, at) in counts.items():
        if count < most and not said:
            yield found("LOG-17", f"{host} uses {count} NICs, others {most}.", at, subject=host)


def ras(case: Case) -> Iterator[Finding]:
    """LOG-18."""
    reports = case.of(RasReport)
    dead = [r for r in reports if r.kind in {"dead", "missing"}]
    silent = [r for r in reports if r.kind in {"unresponsive", "timeout"}]
    uneven = [r for r in reports if r.kind in {"mismatch", "incomplete"}]
    if dead or silent:
        first = (dead or silent)[0]
        node = next((r.node for r in [*dead, *silent] if r.node), "")
        rank = next((r.rank for r in [*dead, *silent] if r.rank), "")
        what = f"RAS: {first.what} is {'dead or missing' if dead else 'not responding'}" + (
            f"; rank {rank}." if rank and rank not in first.what else "."
        )
        yield found(
            "LOG-18",
            what,
            *(r.at for r in [*dead, *silent]),
            subject=node or (f"rank {rank}" if rank else ""),
            severity="FATAL" if dead else "ERROR",
        )
    elif uneven:
        detail = next((r.what for r in reports if r.kind == "count"), uneven[0].what)
        what = (
            f"RAS: {uneven[0].kind} ({detail}): normal in passing; ask again, and only when nothing moved look at "
            f"the ranks that are behind."
        )
        yield found("LOG-18", what, uneven[0].at, severity="INFO")


def crash(case: Case) -> Iterator[Finding]:
    """LOG-19."""
    for events in case.hosts(KernelEvent).values():
        crashed = [e for e in events if e.kind == "nccl-crash"]
        if crashed:
            yield found(
                "LOG-19",
                f"{crashed[0].device} crashed inside libnccl ({len(crashed)} time{'s' * (len(crashed) > 1)}).",
                *(e.at for e in crashed),
                subject=crashed[0].device,
                since=(crashed[0].time_s, crashed[0].when),
            )


RULES = {
    "LOG-01": sockets,
    "LOG-02": interfaces,
    "LOG-03": no_interface,
    "LOG-04": unreachable,
    "LOG-05": gdr_off,
    "LOG-06": no_answer,
    "LOG-07": flushed,
    "LOG-08": protection,
    "LOG-09": queue_pairs,
    "LOG-10": device_events,
    "LOG-11": shared_memory,
    "LOG-12": pinned,
    "LOG-13": versions,
    "LOG-14": shared_gpu,
    "LOG-15": timeouts,
    "LOG-16": closed,
    "LOG-17": nic_counts,
    "LOG-18": ras,
    "LOG-19": crash,
}
