"""Rules about GPUs: count, Xid, memory, slowdown, temperature, clocks, stragglers, copies, settings, health suites."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median

from isthmus.doctor.case import Case, mode
from isthmus.doctor.facts.bench import CopyBandwidth, RankTiming
from isthmus.doctor.facts.gpu import DcgmHealth, DiagResult, GpuName, GpuReport, NvlinkStatus, TopoMatrix
from isthmus.doctor.facts.kernel import PciDevice, Xid
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.rules.models import is_module, pcie_generation
from isthmus.doctor.rules.nvlink import NVLINK_XIDS
from isthmus.doctor.text import Place

__all__ = ["RULES"]

_APPLICATION = {
    13: "illegal instruction or memory access of the program",
    31: "illegal memory access of the program",
    43: "the program's channel was stopped",
    45: "the program was ended",
    109: "a context switch timed out",
}
_HARDWARE = {
    48: ("ERROR", "uncorrectable memory error"),
    61: ("ERROR", "internal microcontroller halt"),
    62: ("ERROR", "internal microcontroller halt"),
    63: ("WARN", "a memory row is to be remapped: reset the GPU at the next pause"),
    64: ("ERROR", "row remapping failed"),
    68: ("ERROR", "video processor exception"),
    69: ("ERROR", "graphics engine exception"),
    79: ("FATAL", "fallen off the bus"),
    92: ("WARN", "many correctable memory errors"),
    94: ("WARN", "contained memory error: the program died, reset later"),
    95: ("ERROR", "uncontained memory error: reset now"),
    110: ("ERROR", "security fault"),
    119: ("ERROR", "the GPU's system processor (GSP) does not answer"),
    120: ("ERROR", "the GPU's system processor (GSP) failed"),
    121: ("WARN", "C2C link error was corrected"),
    140: ("ERROR", "unrecovered memory error"),
    143: ("ERROR", "GPU initialisation failed"),
    154: ("ERROR", "the driver asks for a recovery action"),
    171: ("ERROR", "uncorrectable memory error in DRAM"),
    172: ("ERROR", "uncorrectable memory error in SRAM"),
}


def missing(case: Case) -> Iterator[Finding]:
    """GPU-01: fewer than described, or than lspci shows. (Fewer than other nodes: rules/across.py.)"""
    for host, (count, at) in gpu_counts(case).items():
        devices = [
            d
            for d in case.hosts(PciDevice).get(host, [])
            if d.kind == "gpu" and d.pci_class in {"0302", ""} and "NVIDIA" in d.name
        ]
        wanted = case.expected.gpus
        if wanted is not None and count < wanted:
            yield found(
                "GPU-01",
                f"{count} GPUs where the fabric describes {wanted} a node ({case.expected.source}).",
                at,
                severity="FATAL",
            )
        elif count < len(devices):
            yield found("GPU-01", f"The driver shows {count} GPUs, lspci {len(devices)}.", at, devices[0].at)


def gpu_counts(case: Case) -> dict[str, tuple[int, Place]]:
    """Host -> GPUs that the driver shows. Excerpts of single GPUs count only where the list is known to be whole."""
    counts: dict[str, tuple[int, Place]] = {}
    for host, names in case.hosts(GpuName).items():
        listed = {name.index for name in names}
        nvlink = {status.gpu for status in case.hosts(NvlinkStatus).get(host, [])}
        if listed == set(range(len(listed))) and not (nvlink and len(nvlink) == 1):
            counts[host] = (len(listed), names[0].at)
    for host, matrices in case.hosts(TopoMatrix).items():
        if matrices[0].complete:
            counts.setdefault(host, (len(matrices[0].gpus), matrices[0].at))
    for host, reports in case.hosts(GpuReport).items():
        whole = [r for r in reports if r.bus and r.driver]
        if whole:
            counts.setdefault(host, (len({r.bus for r in whole}), whole[0].at))
    return counts


def xids(case: Case) -> Iterator[Finding]:
    """GPU-02."""
    for group in case.hosts(Xid).values():
        by_device: dict[str, list[Xid]] = defaultdict(list)
        for xid in group:
            by_device[xid.device].append(xid)
        for device, mine in by_device.items():
            told = [x for x in mine if x.code != 79 and x.code not in NVLINK_XIDS and not x.switch]
            switch = [x for x in mine if x.switch]
            if told:
                yield _xid(device, told, mine)
            if switch:
                fatal = [x for x in switch if "fatal" in x.text.lower() and "non-fatal" not in x.text.lower()]
                first = (fatal or switch)[0]
                what = f"NVSwitch {device} reported SXid {first.code}: {first.text[:120]}"
                yield found(
                    "GPU-02",
                    what,
                    *(x.at for x in switch),
                    subject=device,
                    severity="ERROR" if fatal else "WARN",
                    since=(first.time_s, first.when),
                )


def _xid(device: str, told: list[Xid], mine: list[Xid]) -> Finding:
    # Worst first, and among equals the earliest: an action (154) or a kill (45) never hides what made it necessary.
    worst = min(told, key=lambda x: (_order(x), told.index(x)))
    severity, words = _HARDWARE.get(worst.code, ("WARN", _APPLICATION.get(worst.code, "see NVIDIA's Xid catalogue")))
    if worst.code in {45, 154} and (worst.caused_by is not None or any(x.code in NVLINK_XIDS for x in mine)):
        severity, words = (
            "INFO",
            words + ", a consequence of Xid " + str(worst.caused_by or next(x.code for x in mine if x.code in NVLINK_XIDS)),
        )
    others = sorted({x.code for x in told} - {worst.code})
    what = f"Xid {worst.code} on {device or 'a GPU'}: {words}."
    what += f" Also {', '.join(f'Xid {code}' for code in others)} on the same GPU." if others else ""
    what += f" {worst.text[:140]}" if worst.text and worst.code not in _APPLICATION else ""
    places = [worst.at, *(x.at for x in told if x is not worst)]
    return found("GPU-02", what, *places, subject=device, severity=severity, since=(worst.time_s, worst.when))


def _order(xid: Xid) -> int:
    severity = _HARDWARE.get(xid.code, ("WARN", ""))[0]
    return {"FATAL": 0, "ERROR": 1, "WARN": 2}[severity] + 10 * (xid.code in {45, 154}) + 3 * (xid.code in _APPLICATION)


def remapped(case: Case) -> Iterator[Finding]:
    """GPU-03."""
    for report in case.of(GpuReport):
        base, gpu = "Remapped Rows", report.bus or "(address not printed)"
        wrong = report.number(f"{base}/Uncorrectable Error") or 0
        if report.word(f"{base}/Remapping Failure Occurred") == "Yes":
            yield found(
                "GPU-03",
                f"GPU {gpu}: row remapping has failed; replace it.",
                report.place(f"{base}/Remapping Failure Occurred"),
                subject=report.bus,
                severity="ERROR",
            )
        elif wrong >= 512:
            what = f"GPU {gpu}: {wrong:g} rows were remapped for uncorrectable errors; replace it."
            yield found("GPU-03", what, report.place(f"{base}/Uncorrectable Error"), subject=report.bus, severity="ERROR")
        elif report.word(f"{base}/Pending") == "Yes":
            yield found(
                "GPU-03", f"GPU {gpu}: a row remap waits for a reset.", report.place(f"{base}/Pending"), subject=report.bus
            )
    for result in case.of(DiagResult):
        if re.search(r"row\s+remapp?ings?.*(?:pending|fail)|remapp?ings? are pending", result.message, re.IGNORECASE):
            failed = "fail" in result.message.lower()
            yield found(
                "GPU-03",
                f"DCGM: {result.message}",
                result.at,
                subject=result.gpus,
                severity="ERROR" if failed or result.result == "Fail" else "WARN",
            )


def ecc(case: Case) -> Iterator[Finding]:
    """GPU-04."""
    for report in case.of(GpuReport):
        said = list(_ecc_words(report))
        if said:
            gpu = report.bus or "(address not printed)"
            severity = "ERROR" if any(bad for _, _, bad in said) else "WARN"
            what = f"GPU {gpu}: " + "; ".join(words for words, _, _ in said) + "."
            yield found("GPU-04", what, *(report.place(path) for _, path, _ in said), subject=report.bus, severity=severity)


def _ecc_words(report: GpuReport) -> Iterator[tuple[str, str, bool]]:
    """(words, path, is an error)."""
    for path in report.values:
        counted = path.startswith("ECC Errors/") and report.values[path][0] != "0"
        if counted and (number := report.number(path)):
            volatile, leaf = "/Volatile/" in path, path.rsplit("/", 1)[1]
            wrong = "Uncorrectable" in leaf or ("Double Bit" in path and leaf == "Total")
            if wrong and volatile:
                yield f"{number:g} uncorrectable errors since the driver was loaded ({leaf})", path, True
            elif wrong and "SRAM" in leaf and number > 4:
                yield f"{number:g} uncorrectable SRAM errors in its life ({leaf})", path, True
            elif "Correctable" in leaf and "Uncorrectable" not in leaf and number > 1e7:
                yield f"{number:g} correctable errors", path, False
        elif counted and path.endswith("SRAM Threshold Exceeded") and report.word(path) == "Yes":
            yield "the SRAM error threshold is exceeded", path, True
    base = "Retired Pages"
    single, double = report.number(f"{base}/Single Bit ECC") or 0, report.number(f"{base}/Double Bit ECC") or 0
    if single + double >= 63 or double > 15:
        yield f"{single + double:g} retired pages, {double:g} of them for double-bit errors", f"{base}/Double Bit ECC", True
    if any(report.word(f"{base}/{leaf}") == "Yes" for leaf in ("Pending Page Blacklist", "Pending", "Pending Page Retirement")):
        leaf = next(
            leaf
            for leaf in ("Pending Page Blacklist", "Pending", "Pending Page Retirement")
            if report.word(f"{base}/{leaf}") == "Yes"
        )
        yield "pages wait to be retired: reset it", f"{base}/{leaf}", False


_SLOWDOWNS = (
    ("HW Slowdown/HW Thermal Slowdown", "HW Thermal Slowdown"),
    ("HW Slowdown/HW Power Brake Slowdown", "HW Power Brake Slowdown"),
    ("SW Thermal Slowdown", "SW Thermal Slowdown"),
)


def _active(report: GpuReport) -> list[tuple[str, str]]:
    """(path, name) of active slowdowns; the umbrella only when it has no active child."""
    base = "Clocks Event Reasons/"
    children = [
        (path, name)
        for path in report.values
        if path.startswith(base) and report.word(path) == "Active"
        for _, name in _SLOWDOWNS
        if path.endswith(name)
    ]
    umbrella = [
        (path, "HW Slowdown")
        for path in report.values
        if path.startswith(base) and path.endswith("HW Slowdown") and report.word(path) == "Active"
    ]
    return children or umbrella


def slowdown(case: Case) -> Iterator[Finding]:
    """GPU-05."""
    for report in case.of(GpuReport):
        active = _active(report)
        if not active:
            continue
        idle = report.word("Clocks Event Reasons/Idle") == "Active" or report.word("Performance State") in {"P8", "P12"}
        soft = all(name.startswith("SW") for _, name in active)
        what = f"GPU {report.bus or '(address not printed)'}: {' and '.join(name for _, name in active)} is active" + (
            " while it is idle." if idle else "."
        )
        yield found(
            "GPU-05",
            what,
            *(report.place(path) for path, _ in active),
            subject=report.bus,
            severity="WARN" if idle or soft else "ERROR",
        )


def thermal(case: Case) -> Iterator[Finding]:
    """GPU-06."""
    for report in case.of(GpuReport):
        margin, offset = report.number("Temperature/GPU T.Limit Temp"), report.number("Temperature/GPU Slowdown T.Limit Temp")
        now, limit = report.number("Temperature/GPU Current Temp"), report.number("Temperature/GPU Slowdown Temp")
        at = report.place("Temperature/GPU T.Limit Temp" if margin is not None else "Temperature/GPU Current Temp")
        if margin is not None and margin <= 0:
            hot = offset is not None and margin <= offset
            what = f"GPU {report.bus}: {margin:g} C of thermal margin are left" + (
                f"; it slows down at {offset:g}." if offset is not None else "."
            )
            yield found("GPU-06", what, at, subject=report.bus, severity="ERROR" if hot else "WARN")
        elif margin is None and now is not None and limit is not None and now >= limit:
            yield found("GPU-06", f"GPU {report.bus} is at {now:g} C; it slows down at {limit:g} C.", at, subject=report.bus)


def stuck_clock(case: Case) -> Iterator[Finding]:
    """GPU-07."""
    for reports in case.hosts(GpuReport).values():
        busy = [r for r in reports if (r.number("Utilization/GPU") or 0) > 90 and r.number("Clocks/SM")]
        usual = median(r.number("Clocks/SM") or 0 for r in busy) if len(busy) > 2 else 0.0
        for report in reports:
            clock, most = report.number("Clocks/SM"), report.number("Max Clocks/SM") or report.number("Clocks/Video")
            at = report.place("Clocks/SM")
            if clock is None:
                continue
            idle = report.word("Clocks Event Reasons/Idle") == "Active" or report.word("Performance State") not in {"", "P0"}
            if report in busy and usual and clock < 0.75 * usual:
                yield found(
                    "GPU-07",
                    f"GPU {report.bus}: {clock:g} MHz under load; its twins run at {usual:g} MHz.",
                    at,
                    subject=report.bus,
                )
            elif not idle and most and clock < 0.75 * most and any("HW" in name for _, name in _active(report)):
                words = "maximum" if report.number("Max Clocks/SM") else "video clock"
                yield found(
                    "GPU-07",
                    (
                        f"GPU {report.bus or '(address not printed)'}: {clock:g} MHz beside a {words} of {most:g} MHz, while "
                        f"a slowdown is active."
                    ),
                    at,
                    subject=report.bus,
                )


def straggler(case: Case) -> Iterator[Finding]:
    """GPU-08."""
    times: dict[str, list[RankTiming]] = defaultdict(list)
    for timing in case.of(RankTiming):
        times[timing.rank].append(timing)
    medians = {rank: median(t.seconds for t in ts) for rank, ts in times.items() if len(ts) >= 5}
    if len(medians) < 3:
        return
    usual = median(medians.values())
    for rank, own in medians.items():
        if own > 0 and usual / own < 0.75:
            what = f"Rank {rank} computes {own:.4g} s a step, the median rank {usual:.4g} s (score {usual / own:.2f})."
            yield found("GPU-08", what, times[rank][0].at, subject=f"rank {rank}")


def copies(case: Case) -> Iterator[Finding]:
    """GPU-09."""
    floors = {4: 23.0, 5: 48.0, 6: 48.0}
    for host, group in case.hosts(CopyBandwidth).items():
        generation = pcie_generation(case.model(host))
        for direction in ("h2d", "d2h"):
            rows = [row for row in group if row.direction == direction]
            usual = median(row.gbyte_per_s for row in rows) if len(rows) > 2 else 0.0
            for row in rows:
                floor = floors.get(generation or 0, 0.0)
                if row.gbyte_per_s < floor or (usual and row.gbyte_per_s < 0.8 * usual):
                    against = (
                        f"{floor:g} GB/s are usual at PCIe generation {generation}"
                        if row.gbyte_per_s < floor
                        else f"the others reach {usual:g} GB/s"
                    )
                    yield found(
                        "GPU-09",
                        f"GPU {row.gpu}: {direction} copies at {row.gbyte_per_s:g} GB/s; {against}.",
                        row.at,
                        subject=row.gpu,
                    )


_EQUAL = (
    ("Product Name", "model", "ERROR"),
    ("GPU Power Readings/Current Power Limit", "power limit", "WARN"),
    ("Power Readings/Power Limit", "power limit", "WARN"),
    ("Max Clocks/SM", "maximum SM clock", "WARN"),
    ("ECC Mode/Current", "ECC mode", "WARN"),
    ("MIG Mode/Current", "MIG mode", "WARN"),
)


def mixed(case: Case) -> Iterator[Finding]:
    """GPU-10, over all nodes of the job."""
    reports = case.of(GpuReport)
    for path, words, severity in _EQUAL:
        values = [(r, r.word(path)) for r in reports if r.word(path)]
        usual = mode(value for _, value in values)
        odd = [(r, value) for r, value in values if usual is not None and value != usual]
        if usual is None and len({value for _, value in values}) > 1 and path == "Product Name":
            counted = ", ".join(f"{times} x {name}" for name, times in Counter(value for _, value in values).most_common(4))
            yield found("GPU-10", f"The GPUs are of different models: {counted}.", values[0][0].place(path), severity=severity)
        for host in dict.fromkeys(r.at.host for r, _ in odd):
            mine = [(r, value) for r, value in odd if r.at.host == host]
            what = f"{words} of {len(mine)} GPU{'s' * (len(mine) > 1)} is {mine[0][1]}; most have {usual}."
            yield found(
                "GPU-10", what[0].upper() + what[1:], *(r.place(path) for r, _ in mine), subject=mine[0][0].bus, severity=severity
            )


_HARMLESS = re.compile(r"persistence|environment variable|EULA|deployment.*software", re.IGNORECASE)


def suites(case: Case) -> Iterator[Finding]:
    """GPU-11."""
    results = case.of(DiagResult)
    bad = [r for r in results if r.result in {"Fail", "Warn"}]
    for result in bad:
        if any(
            other.message and not result.message and (other.test, other.result) == (result.test, result.result) for other in bad
        ):
            continue  # the row with the words stands for both
        persistence = "persistence" in (result.test + result.message).lower()
        severity = (
            "ERROR"
            if result.result == "Fail" and not persistence
            else "WARN"
            if result.result == "Fail" or not persistence
            else "INFO"
        )
        what = f"{result.test}: {'failed' if result.result == 'Fail' else 'warning'}" + (
            f" on GPU {result.gpus}" if result.gpus else ""
        )
        yield found(
            "GPU-11",
            what + (f". {result.message[:240]}" if result.message else "."),
            result.at,
            subject=result.gpus or result.test,
            severity=severity,
        )
    yield from _health(case)


def _health(case: Case) -> Iterator[Finding]:
    for host, rows in case.hosts(DcgmHealth).items():
        told = [row for row in rows if row.system != "overall" and row.status.lower() not in {"healthy", "pass"}]
        links_down = [row for row in told if re.search(r"nvlink.*(?:link \d+)?.*down", row.message, re.IGNORECASE)]
        # A card without a bridge reports all its links down: only a module, or a GPU with some links up, proves a fault.
        proven = is_module(case.model(host)) or any(not s.all_inactive for s in case.hosts(NvlinkStatus).get(host, []))
        for row in told:
            if row in links_down and not proven:
                continue
            failure = row.status.lower().startswith("fail")
            yield found(
                "GPU-11",
                f"{row.system} of GPU {row.gpu}: {row.message}",
                row.at,
                subject=row.gpu,
                severity="ERROR" if failure else "WARN",
            )
        if links_down and not proven:
            what = (
                f"DCGM calls {len(links_down)} NVLinks down; a PCIe card without a bridge says so too. Only modules "
                f"and bridged cards have links to lose."
            )
            yield found("GPU-11", what, links_down[0].at, subject=links_down[0].gpu, severity="INFO")


RULES = {
    "GPU-01": missing,
    "GPU-02": xids,
    "GPU-03": remapped,
    "GPU-04": ecc,
    "GPU-05": slowdown,
    "GPU-06": thermal,
    "GPU-07": stuck_clock,
    "GPU-08": straggler,
    "GPU-09": copies,
    "GPU-10": mixed,
    "GPU-11": suites,
}
