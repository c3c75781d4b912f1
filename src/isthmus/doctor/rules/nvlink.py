"""Rules about NVLink: state, matrix, bridges, errors, fabric manager, multi-node domains."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from isthmus.doctor.case import Case, mode
from isthmus.doctor.facts.gpu import (
    DcgmMetric,
    FabricManager,
    GpuReport,
    ImexState,
    NvlinkErrors,
    NvlinkFirmware,
    NvlinkStatus,
    TopoMatrix,
)
from isthmus.doctor.facts.host import Version
from isthmus.doctor.facts.kernel import PciDevice, Xid
from isthmus.doctor.facts.nccl import NcclEvent
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.rules.models import is_module, links, pair_links
from isthmus.doctor.text import Place

__all__ = ["NVLINK_XIDS", "RULES"]

NVLINK_XIDS = frozenset([74, 144, 145, 146, 147, 148, 149, 150])
_BER_LIMIT = 1e-12
_SINGLE_SAMPLE_ERRORS = 5
_HOT_FALLBACK_C, _HOT_MARGIN_C = 85.0, 5.0


def inactive_links(case: Case) -> Iterator[Finding]:
    """NVL-01."""
    for statuses in case.hosts(NvlinkStatus).values():
        counts = {id(status): sum(speed is not None for speed in status.links.values()) for status in statuses}
        for status in statuses:
            active = counts[id(status)]
            twins = [counts[id(other)] for other in statuses if other is not status and other.name == status.name]
            off = [link for link, speed in status.links.items() if speed is None]
            gpu = f"GPU {status.gpu}" if status.gpu else "a GPU"
            if status.all_inactive or not active:
                if is_module(status.name) or any(twins):
                    yield found(
                        "NVL-01",
                        f"All NVLinks of {gpu} ({status.name or 'model not printed'}) are inactive.",
                        status.at,
                        subject=status.gpu,
                    )
            elif _partial(status, active, twins, off):
                whole = max([*twins, active + len(off), links(status.name) or 0])
                named = f" (links {', '.join(map(str, off))})" if off else ""
                what = f"{gpu} ({status.name or 'model not printed'}) has {active} of {whole} NVLinks{named}."
                yield found("NVL-01", what, *[status.places[link] for link in off] or [status.at], subject=status.gpu)


def _partial(status: NvlinkStatus, active: int, twins: list[int], off: list[int]) -> bool:
    """Fewer than the twins have; or links printed as inactive on a module. Links that a cut paste lacks prove nothing."""
    if twins and max(twins) > active and (off or len(status.links) == active):
        return bool(off) or mode(twins) is not None
    return bool(off) and is_module(status.name)


def _pairs(matrix: TopoMatrix) -> dict[tuple[str, str], str]:
    """Each GPU pair once."""
    gpus = matrix.gpus
    return {
        (a, b): matrix.cells[(a, b)]
        for n, a in enumerate(gpus)
        for b in matrix.columns
        if (a, b) in matrix.cells and b.startswith("GPU") and (b not in gpus[:n])
    }


def _bonded(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") and cell[2:].isdecimal() else 0


def uneven_matrix(case: Case) -> Iterator[Finding]:
    """NVL-02."""
    for matrix in case.of(TopoMatrix):
        pairs = _pairs(matrix)
        usual = mode(pairs.values())
        if usual is None or _bonded(usual) < 4 or len(matrix.gpus) < 3:
            continue
        odd = {pair: cell for pair, cell in pairs.items() if cell != usual}
        if odd:
            blamed = Counter(gpu for pair in odd for gpu in pair).most_common(1)[0][0]
            shown = ", ".join(f"{a}-{b} {cell}" for (a, b), cell in list(odd.items())[:4])
            what = f"{len(odd)} of {len(pairs)} GPU pairs {'are' if len(odd) > 1 else 'is'} not {usual}: {shown}."
            what += f" {blamed} is in most of them." if len(odd) > 1 else ""
            yield found("NVL-02", what, matrix.places.get(blamed, matrix.at), subject=blamed)


def no_nvlink(case: Case) -> Iterator[Finding]:
    """NVL-03."""
    for matrix in case.of(TopoMatrix):
        pairs = _pairs(matrix)
        if not pairs or any(_bonded(cell) for cell in pairs.values()):
            continue
        model = case.model(matrix.at.host)
        switches = [d for d in case.hosts(PciDevice).get(matrix.at.host, []) if d.kind == "nvswitch"]
        if is_module(model) or switches:
            why = f"the GPUs are {model}" if is_module(model) else f"the machine has {len(switches)} NVSwitches"
            yield found("NVL-03", f"No GPU pair has NVLink, although {why}.", matrix.at, *(d.at for d in switches[:1]))


def bridges(case: Case) -> Iterator[Finding]:
    """NVL-04."""
    for matrix in case.of(TopoMatrix):
        pairs = _pairs(matrix)
        bonded = {pair: _bonded(cell) for pair, cell in pairs.items() if _bonded(cell)}
        model = case.model(matrix.at.host)
        partners = Counter(gpu for pair in bonded for gpu in pair)
        if not bonded or is_module(model) or max(partners.values()) > 1 or len(matrix.gpus) < 2:
            continue
        full = pair_links(model) or _unlikely(matrix, bonded)
        weak = [pair for pair, count in bonded.items() if count < max([full or 0, *bonded.values()])]
        for first, second in weak:
            whole = max([full or 0, *bonded.values()])
            what = (
                f"{first} and {second} share {bonded[(first, second)]} NVLinks where {whole} are possible: the bridge "
                f"is partly connected or one is missing."
            )
            yield found("NVL-04", what, matrix.places.get(first, matrix.at), subject=f"{first}-{second}")
        yield from _mispaired(matrix, bonded, partners)


def _unlikely(matrix: TopoMatrix, bonded: dict[tuple[str, str], int]) -> int | None:
    """Bridges have even numbers of links (or one): three of four are connected. POWER9 (NUMA nodes 0, 8) has three by design."""
    odd = [count for count in bonded.values() if count > 1 and count % 2]
    return max(odd) + 1 if odd and "8" not in matrix.numa.values() else None


def _mispaired(matrix: TopoMatrix, bonded: dict[tuple[str, str], int], partners: Counter[str]) -> Iterator[Finding]:
    near = {"PIX", "PXB", "PHB", "NODE"}
    for first, second in bonded:
        if matrix.numa.get(first) and matrix.numa.get(second) and matrix.numa[first] != matrix.numa[second]:
            nearer = [g for g in matrix.gpus if matrix.cells.get((first, g), "") in near]
            if nearer:
                what = f"The bridge joins {first} and {second} across sockets while {nearer[0]} is nearer to {first}."
                yield found("NVL-04", what, matrix.places.get(first, matrix.at), subject=f"{first}-{second}")
    alone = [gpu for gpu in matrix.gpus if gpu not in partners]
    if alone and matrix.complete:
        what = f"{', '.join(alone)} {'has' if len(alone) == 1 else 'have'} no NVLink partner while other cards are bridged."
        yield found("NVL-04", what, matrix.places.get(alone[0], matrix.at), subject=alone[0], severity="INFO")


def error_counters(case: Case) -> Iterator[Finding]:
    """NVL-05."""
    grouped: dict[tuple[str, str], list[NvlinkErrors]] = defaultdict(list)
    for errors in case.of(NvlinkErrors):
        grouped[(errors.at.host, errors.gpu)].append(errors)
    for (_, gpu), samples in grouped.items():
        first, last = samples[0], samples[-1]
        growth = (
            {key: value - first.counts[key] for key, value in last.counts.items() if value > first.counts.get(key, value)}
            if len(samples) > 1
            else {}
        )
        if growth:
            key, most = max(growth.items(), key=lambda item: item[1])
            certain = "CRC" not in key[1]
            what = (
                f"GPU {gpu}: {key[1]} on link {key[0]} grew by {most} between two samples ({sum(growth.values())} "
                f"over all links and counters)."
            )
            yield found("NVL-05", what, last.places.get(key, last.at), subject=gpu, severity="ERROR" if certain else "WARN")
        elif len(samples) == 1 and (total := sum(first.counts.values())) >= _SINGLE_SAMPLE_ERRORS:
            key, most = max(first.counts.items(), key=lambda item: item[1])
            what = (
                f"GPU {gpu or '?'}: {total} NVLink errors, most of them {key[1]} on link {key[0]} ({most}); since "
                f"when is not known from one sample."
            )
            yield found("NVL-05", what, first.places.get(key, first.at), subject=gpu)


def bit_errors(case: Case) -> Iterator[Finding]:
    """NVL-06."""
    for errors in case.of(NvlinkErrors):
        bad = {key: rate for key, rate in errors.rates.items() if rate > _BER_LIMIT and "raw" not in key[1].lower()}
        if bad:
            key, rate = max(bad.items(), key=lambda item: item[1])
            what = (
                f"GPU {errors.gpu}: {key[1]} of link {key[0]} is {rate:.3g}, above 1e-12 ({len(bad)} links or counters in all)."
            )
            yield found("NVL-06", what, errors.places[key], subject=errors.gpu)


_MANAGER_WORDS = {
    "failed": "has failed",
    "inactive": "is not running",
    "version-mismatch": "is of another version than the driver",
    "error": "logs errors",
}


def fabric_manager(case: Case) -> Iterator[Finding]:
    """NVL-07."""
    for host, states in case.hosts(FabricManager).items():
        last = states[-1]
        needless = any(state.state == "nothing-to-do" for state in states)
        switches = any(d.kind == "nvswitch" for d in case.hosts(PciDevice).get(host, []))
        if last.state in {"failed", "inactive", "version-mismatch", "error"} and (not needless or switches):
            certain = last.state in {"failed", "version-mismatch"} or switches or is_module(case.model(host))
            what = f"The fabric manager {_MANAGER_WORDS[last.state]}."
            yield found(
                "NVL-07",
                what,
                last.at,
                severity="FATAL" if certain and last.state != "error" else "ERROR" if last.state == "error" else "WARN",
            )
        own = [v for v in case.hosts(Version).get(host, []) if v.software == "fabricmanager"]
        driver = [v for v in case.hosts(Version).get(host, []) if v.software == "driver"]
        if own and driver and own[-1].version != driver[-1].version:
            what = f"Fabric manager {own[-1].version} with driver {driver[-1].version}: they must be equal."
            yield found("NVL-07", what, own[-1].at, driver[-1].at)


def fabric_state(case: Case) -> Iterator[Finding]:
    """NVL-08."""
    for report in case.of(GpuReport):
        state, status = report.word("Fabric/State"), report.word("Fabric/Status")
        subject = report.bus
        if state == "In Progress":
            what = (
                f"GPU {subject}: fabric registration is in progress; normal for some seconds after a start, a fault "
                f"when it stays."
            )
            yield found("NVL-08", what, report.place("Fabric/State"), subject=subject, severity="WARN")
        elif (state and state not in {"Completed", "Not Started"}) or (status and status != "Success"):
            what = f"GPU {subject}: fabric state {state or 'not printed'}, status {status or 'not printed'}."
            yield found(
                "NVL-08", what, report.place("Fabric/Status" if state == "Completed" else "Fabric/State"), subject=subject
            )
        elif state == "Not Started" and is_module(report.name):
            yield found(
                "NVL-08", f"GPU {subject}: fabric registration has not started.", report.place("Fabric/State"), subject=subject
            )
    for event in case.of(NcclEvent):
        if event.kind == "mnnvl-gpu" and event.values.get("state") not in {"0", "3"}:
            # nvml.h: 0 not supported, 1 not started, 2 in progress, 3 completed.
            what = f"NCCL sees GPU {event.values['bus']} in fabric state {event.values['state']} (3 is completed)."
            yield found("NVL-08", what, event.at, subject=event.values["bus"])


def multicast(case: Case) -> Iterator[Finding]:
    """NVL-09."""
    for host, events in case.hosts(NcclEvent).items():
        bad = [event for event in events if event.kind == "nvls"]
        if bad:
            what = (
                f"NVLink SHARP multicast fails ({len(bad)} line{'s' * (len(bad) > 1)}): "
                f"{bad[0].values.get('why', bad[0].text)[:120].strip()}"
            )
            yield found("NVL-09", what, *(event.at for event in bad), subject=host, since=(None, bad[0].when))


def nvlink_xids(case: Case) -> Iterator[Finding]:
    """NVL-10."""
    for xids in case.hosts(Xid).values():
        mine = [x for x in xids if not x.switch and (x.code in NVLINK_XIDS or x.caused_by in NVLINK_XIDS)]
        roots = [x for x in mine if x.code in NVLINK_XIDS] or mine
        if not roots:
            continue
        fatal = [
            x
            for x in roots
            if x.code == 74 or ("fatal" in x.text.lower() and "nonfatal" not in x.text.lower()) or x.code not in NVLINK_XIDS
        ]
        first = (fatal or roots)[0]
        repeated = [pair for pair, times in Counter((x.device, x.link) for x in roots if x.link is not None).items() if times > 2]
        code = first.code if first.code in NVLINK_XIDS else first.caused_by
        devices = list(dict.fromkeys(x.device for x in roots))
        what = f"Xid {code} on {first.device}" + (f", link {first.link}" if first.link is not None else "")
        what += (
            f": {'fatal' if fatal else 'not fatal'} NVLink error; {len(roots)} report{'s' * (len(roots) > 1)} on "
            f"{len(devices)} GPU{'s' * (len(devices) > 1)}."
        )
        what += f" Link {repeated[0][1]} of {repeated[0][0]} reported more than twice: hardware." if repeated else ""
        places = [first.at, *(x.at for x in roots if x is not first)]
        yield found(
            "NVL-10", what, *places, subject=first.device, severity="ERROR" if fatal else "WARN", since=(first.time_s, first.when)
        )


def hot_switch(case: Case) -> Iterator[Finding]:
    """NVL-11."""
    metrics: dict[tuple[str, str], dict[str, DcgmMetric]] = defaultdict(dict)
    for metric in case.of(DcgmMetric):
        metrics[(metric.at.host, metric.entity)][metric.name] = metric
    for (_, entity), found_metrics in metrics.items():
        now = found_metrics.get("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT")
        if now is None:
            continue
        limit = found_metrics.get("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_LIMIT_SLOWDOWN")
        bound = limit.value if limit else _HOT_FALLBACK_C
        if now.value >= bound - _HOT_MARGIN_C * bool(limit):
            words = "its slowdown limit" if limit else "85 C (no limit was printed; our choice)"
            severity = "ERROR" if now.value >= bound and limit else "WARN"
            what = f"NVSwitch {entity} is at {now.value:g} C; {words} is {bound:g} C."
            yield found("NVL-11", what, now.at, *([limit.at] if limit else []), subject=f"NVSwitch {entity}", severity=severity)


def split_domain(case: Case) -> Iterator[Finding]:
    """NVL-12."""
    for state in case.of(ImexState):
        if state.state.upper() not in {"UP", "READY"}:
            yield found(
                "NVL-12",
                f"IMEX {'node ' + state.node if state.node else 'domain'} is {state.state}.",
                state.at,
                subject=state.node,
            )
    seen: dict[tuple[str, str], Place] = {}
    for report in case.of(GpuReport):
        clique = (report.word("Fabric/ClusterUUID"), report.word("Fabric/CliqueId"))
        if clique[0].strip("0-") and report.at.host:
            seen.setdefault(clique, report.place("Fabric/CliqueId"))
    if len(seen) > 1:
        words = "; ".join(f"{place.host}: {uuid} clique {number}" for (uuid, number), place in list(seen.items())[:4])
        yield found(
            "NVL-12",
            f"GPUs are in {len(seen)} NVLink domains: {words}. Right for several racks, a fault inside one.",
            *seen.values(),
            severity="WARN",
        )
    for events in case.hosts(NcclEvent).values():
        joined = [e for e in events if e.kind == "mnnvl" and e.values.get("on") == "1"]
        channels = [e for e in events if e.kind == "channels" and e.values["nvls"] == "0"]
        imex = [e for e in events if e.kind == "imex"]
        if joined and channels:
            what = (
                f"Multi-node NVLink is on, but NCCL built no NVLS channel and only {channels[0].values['coll']} "
                f"others: a GPU has lost its NVLinks in NCCL's view."
            )
            yield found("NVL-12", what, channels[0].at, joined[0].at)
        elif imex:
            yield found("NVL-12", "CUDA error 800: the process may not use the IMEX channel device.", imex[0].at)


def p2p_off(case: Case) -> Iterator[Finding]:
    """NVL-13."""
    for events in case.hosts(NcclEvent).values():
        bad = [event for event in events if event.kind == "p2p-nvlink"]
        if bad:
            pairs = list(dict.fromkeys(f"{e.values['first']}-{e.values['second']}" for e in bad))
            yield found(
                "NVL-13", f"P2P is off between NVLink GPUs {', '.join(pairs[:6])}.", *(e.at for e in bad), subject=pairs[0]
            )


def firmware(case: Case) -> Iterator[Finding]:
    """NVL-14."""
    for group in case.hosts(NvlinkFirmware).values():
        usual = mode(tuple(sorted(one.versions.items())) for one in group)
        for one in group:
            if usual is not None and tuple(sorted(one.versions.items())) != usual:
                part = next((name for name, version in one.versions.items() if dict(usual).get(name) != version), "")
                what = f"GPU {one.gpu}: NVLink firmware {part} {one.versions.get(part)} where most have {dict(usual).get(part)}."
                yield found("NVL-14", what, one.at, subject=one.gpu)
    for group in case.hosts(GpuReport).values():
        usual_bios = mode((r.name, r.word("VBIOS Version")) for r in group if r.word("VBIOS Version"))
        for report in group:
            mine = (report.name, report.word("VBIOS Version"))
            if usual_bios and mine[1] and mine[0] == usual_bios[0] and mine != usual_bios:
                what = f"GPU {report.bus}: VBIOS {mine[1]} where most have {usual_bios[1]}."
                yield found("NVL-14", what, report.place("VBIOS Version"), subject=report.bus)


RULES = {
    "NVL-01": inactive_links,
    "NVL-02": uneven_matrix,
    "NVL-03": no_nvlink,
    "NVL-04": bridges,
    "NVL-05": error_counters,
    "NVL-06": bit_errors,
    "NVL-07": fabric_manager,
    "NVL-08": fabric_state,
    "NVL-09": multicast,
    "NVL-10": nvlink_xids,
    "NVL-11": hot_switch,
    "NVL-12": split_domain,
    "NVL-13": p2p_off,
    "NVL-14": firmware,
}
