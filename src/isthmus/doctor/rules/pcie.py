"""Rules about PCIe: widths, speeds, the path above a device, replays, ACS, IOMMU, slots."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from isthmus.doctor.case import Case, mode
from isthmus.doctor.facts.gpu import GpuReport
from isthmus.doctor.facts.host import HostSetting
from isthmus.doctor.facts.kernel import AcsControl, KernelEvent, PciDevice, PcieLimited, Xid
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found

__all__ = ["RULES", "is_virtual"]

_DATA_NIC = re.compile(r"Mellanox|ConnectX|BlueField|Infiniband|Elastic Fabric|BCM57[56]|BCM5760|E810|Pensando", re.IGNORECASE)
# Payload of a lane at each transfer rate, bits per second: 8b/10b up to 5 GT/s, 128b/130b above (PCI Express Base Specification).
_LANE = {2.5: 2.0e9, 5.0: 4.0e9, 8.0: 8e9 * 128 / 130, 16.0: 16e9 * 128 / 130, 32.0: 32e9 * 128 / 130, 64.0: 64e9 * 242 / 256}
_REPLAYS_PER_LANE_MINUTE = {3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
_PORT_RATES = (400, 200, 100, 50, 25, 10)


def _bits_per_s(speed: float | None, width: int | None) -> float | None:
    return _LANE[speed] * width if speed in _LANE and width else None


def _watched(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """GPUs, NVSwitches, data NICs, whatever a sysfs dump was made for, and the bridges above them."""
    devices = list(devices)
    by_address = {device.address: device for device in devices}
    ends = [
        d
        for d in devices
        if d.kind in {"gpu", "nvswitch"} or (d.kind == "nic" and _DATA_NIC.search(d.name)) or d.source == "sysfs"
    ]
    keep = {device.address for device in ends}
    for device in ends:
        above = device.parent
        while above and above not in keep and above in by_address:
            keep.add(above)
            above = by_address[above].parent
    return [device for device in devices if device.address in keep]


def is_virtual(case: Case, host: str) -> bool:
    """The machine is a guest, as the kernel or lscpu says."""
    events = [e for e in case.hosts(KernelEvent).get(host, []) if e.kind == "hypervisor"]
    words = [
        s for s in case.hosts(HostSetting).get(host, []) if s.name == "hypervisor" and s.value.lower() not in {"none", "bare"}
    ]
    return bool(events or words)


def narrow(case: Case) -> Iterator[Finding]:
    """PCI-01."""
    for reports in case.hosts(GpuReport).values():
        path = "PCI/GPU Link Info/Link Width"
        widths = [(r, r.number(f"{path}/Current"), r.number(f"{path}/Max")) for r in reports]
        low = [(r, now, most) for r, now, most in widths if now is not None and most is not None and now < most]
        all_alike = len(low) == len(widths) > 1 and len({now for _, now, _ in low}) == 1
        for report, now, most in low:
            severity = "INFO" if all_alike else "ERROR" if len(widths) > 1 else "WARN"
            what = f"GPU {report.bus} runs on {now:g} of {most:g} PCIe lanes" + (
                ", as do all others here (board design?)." if all_alike else "."
            )
            yield found("PCI-01", what, report.place(f"{path}/Current"), subject=report.bus, severity=severity)
    for devices in case.hosts(PciDevice).values():
        watched = _watched(devices)
        for device in watched:
            twins = [d for d in watched if d is not device and d.kind == device.kind and d.name == device.name]
            yield from _narrow_device(device, twins if device.name or device.kind != "other" else [])


def _narrow_device(device: PciDevice, twins: list[PciDevice]) -> Iterator[Finding]:
    known = device.width is not None and device.width_max is not None and device.width < device.width_max
    if not known and not device.narrowed:
        return
    alike = [twin for twin in twins if twin.width is not None]
    wider = [twin for twin in alike if (twin.width or 0) > (device.width or 0)]
    if device.kind == "bridge" and not wider:
        return
    severity = "ERROR" if wider else "INFO" if alike else "WARN"
    most = f" of x{device.width_max}" if device.width_max else ", which lspci itself calls downgraded"
    what = f"{device.address}" + (f" ({device.name.strip()})" if device.name.strip() else "") + f" runs at x{device.width}{most}."
    what += f" Its twin {wider[0].address} has x{wider[0].width}." if wider else " All of its kind do." if alike else ""
    yield found("PCI-01", what, device.link_at, *(twin.link_at for twin in wider[:1]), subject=device.address, severity=severity)


def slow_under_load(case: Case) -> Iterator[Finding]:
    """PCI-02."""
    path = "PCI/GPU Link Info/PCIe Generation"
    for report in case.of(GpuReport):
        now = report.number(f"{path}/Current")
        most = [n for key in ("Device Max", "Host Max", "Max") if (n := report.number(f"{path}/{key}")) is not None]
        used = report.number("Utilization/GPU") or 0.0
        if now is not None and most and now < min(most) and report.word("Performance State") == "P0" and used > 0:
            what = f"GPU {report.bus} is busy ({used:g} %) in P0 on PCIe generation {now:g} of {min(most):g}."
            yield found("PCI-02", what, report.place(f"{path}/Current"), report.place("Performance State"), subject=report.bus)


def slow_above(case: Case) -> Iterator[Finding]:
    """PCI-03."""
    for limits in case.hosts(PcieLimited).values():
        upstream = [limit for limit in limits if limit.limited_at != limit.device]
        alike = (
            len({round(limit.available_bits_per_s / limit.capable_bits_per_s, 3) for limit in upstream}) == 1
            and len(upstream) > 1
        )
        if alike:
            what = (
                f"{len(upstream)} devices are limited alike, e.g. {upstream[0].device} by {upstream[0].limited_at}: board design."
            )
            yield found("PCI-03", what, *(limit.at for limit in upstream), subject=upstream[0].limited_at, severity="INFO")
            continue
        for limit in upstream:
            what = (
                f"{limit.device} could use {limit.capable_bits_per_s / 1e9:.0f} Gb/s; the port {limit.limited_at} "
                f"above it gives {limit.available_bits_per_s / 1e9:.0f}."
            )
            yield found("PCI-03", what, limit.at, subject=limit.limited_at)
    for devices in case.hosts(PciDevice).values():
        by_address = {device.address: device for device in devices}
        for device in _watched(devices):
            above = by_address.get(device.parent) or _unnamed_parent(device, devices)
            yield from _slow_parent(device, above)


def _unnamed_parent(device: PciDevice, devices: list[PciDevice]) -> PciDevice | None:
    """A sysfs dump of a few devices lost the tree: a lower bus that runs below its own maximum is taken for the port above."""
    if device.source != "sysfs" or len(devices) > 4 or any(d.parent for d in devices):
        return None
    lower = [
        d
        for d in devices
        if d.address < device.address
        and (_bits_per_s(d.speed_gt, d.width) or 0) < (_bits_per_s(d.speed_gt_max, d.width_max) or 0)
    ]
    return lower[-1] if lower else None


def _slow_parent(device: PciDevice, above: PciDevice | None) -> Iterator[Finding]:
    if above is None or above.width is None or device.width is None:
        return
    mine, theirs = _bits_per_s(device.speed_gt, device.width), _bits_per_s(above.speed_gt, above.width)
    # Idle ports lower their speed, not their width: at the device's full speed, or with fewer lanes above, the path is narrow.
    full = device.speed_gt is not None and device.speed_gt == device.speed_gt_max
    if mine and theirs and theirs < mine and (full or above.width < device.width) and device.kind != "bridge":
        what = (
            f"{device.address} reaches {mine / 1e9:.0f} Gb/s (x{device.width} at {device.speed_gt:g} GT/s); "
            f"{above.address} above it only "
        )
        what += f"{theirs / 1e9:.0f} Gb/s (x{above.width} at {above.speed_gt:g} GT/s)."
        yield found("PCI-03", what, above.link_at, device.link_at, subject=above.address)


def kernel_limited(case: Case) -> Iterator[Finding]:
    """PCI-04."""
    for limits in case.hosts(PcieLimited).values():
        low = [limit for limit in limits if limit.available_bits_per_s < 0.9 * limit.capable_bits_per_s]
        alike = len({round(limit.available_bits_per_s / limit.capable_bits_per_s, 3) for limit in low}) == 1 and len(low) > 1
        if low:
            first = low[0]
            what = (
                f"The kernel notes {first.available_bits_per_s / 1e9:.0f} of {first.capable_bits_per_s / 1e9:.0f} "
                f"Gb/s for {first.device}"
            )
            what += (
                f" and {len(low) - 1} more, all with the same share (board design?)."
                if alike
                else "."
                if len(low) == 1
                else f" and {len(low) - 1} more."
            )
            yield found("PCI-04", what, *(limit.at for limit in low), subject=first.device, severity="INFO" if alike else "WARN")


def replays(case: Case) -> Iterator[Finding]:
    """PCI-05: two reports of one GPU. Their times are not in the tree: the growth must pass the allowance of a whole minute."""
    samples: dict[tuple[str, str], list[GpuReport]] = defaultdict(list)
    for report in case.of(GpuReport):
        samples[(report.at.host, report.bus)].append(report)
    path = "PCI/Replays Since Reset"
    for (_, bus), reports in samples.items():
        before, after = reports[0].number(path), reports[-1].number(path)
        if bus and len(reports) > 1 and before is not None and after is not None and after > before:
            lanes = reports[-1].number("PCI/GPU Link Info/Link Width/Current") or 16
            generation = int(reports[-1].number("PCI/GPU Link Info/PCIe Generation/Max") or 5)
            per_minute = math.ceil(lanes * _REPLAYS_PER_LANE_MINUTE.get(generation, 1.92))
            if after - before > per_minute:
                what = (
                    f"GPU {bus} replayed {after - before:g} packets between two reports; {per_minute} a minute are "
                    f"allowed at generation {generation} x{lanes:g}."
                )
                yield found("PCI-05", what, reports[-1].place(path), reports[0].place(path), subject=bus)


def fell_off(case: Case) -> Iterator[Finding]:
    """PCI-06."""
    seen: set[tuple[str, str]] = set()
    for fact in [*case.of(Xid), *case.of(KernelEvent)]:
        if (isinstance(fact, Xid) and fact.code == 79 and not fact.switch) or (
            isinstance(fact, KernelEvent) and fact.kind == "fell-off"
        ):
            device = fact.device.lower()
            if any(host == fact.at.host and (not device or not other or device.startswith(other[:10])) for host, other in seen):
                continue
            seen.add((fact.at.host, device))
            yield found(
                "PCI-06",
                f"GPU {device or '(address not printed)'} has fallen off the bus.",
                fact.at,
                subject=device,
                since=(fact.time_s, fact.when),
            )


def acs(case: Case) -> Iterator[Finding]:
    """PCI-07."""
    for host, controls in case.hosts(AcsControl).items():
        devices = {d.address: d for d in case.hosts(PciDevice).get(host, [])}
        redirecting = [c for c in controls if c.redirects and _between(c, devices)]
        validating = [c for c in controls if c.source_validation and not c.redirects and not c.device]
        if redirecting:
            virtual = is_virtual(case, host)
            names = [c.device for c in redirecting if c.device]
            what = f"ACS redirects peer traffic at {len(redirecting)} port{'s' * (len(redirecting) > 1)}" + (
                f" ({', '.join(names[:6])})." if names else "."
            )
            what += " This is a virtual machine: leave ACS on, enable ATS instead." if virtual else ""
            yield found(
                "PCI-07",
                what,
                *(c.at for c in redirecting),
                subject=names[0] if names else "",
                severity="INFO" if virtual else "ERROR",
            )
        elif validating:
            what = (
                f"ACS source validation is on at {len(validating)} port{'s' * (len(validating) > 1)}; it does not "
                f"redirect peer traffic."
            )
            yield found("PCI-07", what, *(c.at for c in validating), severity="INFO")


def _between(control: AcsControl, devices: dict[str, PciDevice]) -> bool:
    """Does this port stand between GPUs and NICs? Unknown ports count; a root port above a switch does not: peers meet below."""
    port = devices.get(control.device)
    if port is None:
        return True
    if port.kind != "bridge":
        return port.kind == "other" and port.source == "lspci" and not any(d.kind == "gpu" for d in devices.values())
    below = [d for d in _watched(devices.values()) if d.kind in {"gpu", "nic"} and _is_above(control.device, d, devices)]
    behind_switch = any(d.parent != control.device for d in below)
    return bool(below) and not (not port.parent and behind_switch)


def _is_above(address: str, device: PciDevice, devices: dict[str, PciDevice]) -> bool:
    above, steps = device.parent, 0
    while above and steps < 32:
        if above == address:
            return True
        above, steps = devices[above].parent if above in devices else "", steps + 1
    return False


def iommu(case: Case) -> Iterator[Finding]:
    """PCI-08."""
    for host in {**case.hosts(KernelEvent), **case.hosts(HostSetting)}:
        events = case.hosts(KernelEvent).get(host, [])
        lines = [e.device for e in events if e.kind == "cmdline"] + [
            s.value for s in case.hosts(HostSetting).get(host, []) if s.name == "cmdline"
        ]
        translated = [e for e in events if e.kind == "iommu" and e.device == "Translated"]
        passes = any(re.search(r"iommu(?:\.passthrough)?=(?:pt|off|1)\b|iommu=pt", line) for line in lines)
        if translated and not passes and not is_virtual(case, host):
            yield found(
                "PCI-08", "The IOMMU translates every DMA: default domain type Translated, no iommu=pt seen.", translated[0].at
            )


def read_requests(case: Case) -> Iterator[Finding]:
    """PCI-09."""
    for devices in case.hosts(PciDevice).values():
        nics = [
            d for d in devices if d.kind == "nic" and re.search(r"ConnectX|MT\d{4}|BlueField", d.name) and d.read_request_bytes
        ]
        most = max((d.read_request_bytes or 0 for d in nics), default=0)
        for nic in nics:
            size = nic.read_request_bytes or 0
            if size < 4096 and any(d.name == nic.name and (d.read_request_bytes or 0) > size for d in nics):
                what = f"{nic.address} reads {size} bytes at once, its twin {most}."
                yield found("PCI-09", what, nic.at, subject=nic.address, severity="WARN")
        if nics and most == 512:
            yield found(
                "PCI-09",
                f"All {len(nics)} ConnectX NICs read 512 bytes at once; 4096 is usual for RDMA.",
                nics[0].at,
                subject=nics[0].address,
            )


def slot(case: Case) -> Iterator[Finding]:
    """PCI-10."""
    for limit in case.of(PcieLimited):
        feeds = next((rate for rate in _PORT_RATES if rate * 1e9 <= 0.9 * limit.available_bits_per_s), 0)
        ports = [p for p in case.hosts(IbPort).get(limit.at.host, []) if p.rate_gbit_per_s]
        if limit.available_bits_per_s < 0.9 * limit.capable_bits_per_s and not ports:
            what = (
                f"{limit.device} gets {limit.available_bits_per_s / 1e9:.0f} Gb/s of PCIe: enough for a port of "
                f"{feeds} Gb/s, if it is a NIC."
            )
            yield found("PCI-10", what, limit.at, subject=limit.device, severity="INFO")
            return
    for host, devices in case.hosts(PciDevice).items():
        rates = [p.rate_gbit_per_s for p in case.hosts(IbPort).get(host, []) if p.rate_gbit_per_s and p.state == "Active"]
        rate = mode(rates)
        for nic in devices:
            bits = _bits_per_s(nic.speed_gt, nic.width)
            if (
                rate
                and bits
                and nic.kind == "nic"
                and _DATA_NIC.search(nic.name)
                and "Virtual" not in nic.name
                and rate * 1e9 > 0.9 * bits
                and len(set(rates)) == 1
            ):
                what = (
                    f"{nic.address} has {bits / 1e9:.0f} Gb/s of PCIe (x{nic.width} at {nic.speed_gt:g} GT/s) for ports "
                    f"of {rate:g} Gb/s."
                )
                yield found("PCI-10", what, nic.link_at, subject=nic.address)


RULES = {
    "PCI-01": narrow,
    "PCI-02": slow_under_load,
    "PCI-03": slow_above,
    "PCI-04": kernel_limited,
    "PCI-05": replays,
    "PCI-06": fell_off,
    "PCI-07": acs,
    "PCI-08": iommu,
    "PCI-09": read_requests,
    "PCI-10": slot,
}
