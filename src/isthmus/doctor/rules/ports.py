"""Rules about RDMA ports: state, rate, flaps, errors, optics, subnet manager, firmware, the NICs that NCCL takes."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from isthmus.doctor.case import Case, mode
from isthmus.doctor.facts.kernel import KernelEvent, PciDevice
from isthmus.doctor.facts.nccl import NcclEvent, NcclNics
from isthmus.doctor.facts.network import DeviceGone, FabricPort, IbPort, Optics, SwitchHealth
from isthmus.doctor.finding import Finding, found
from isthmus.doctor.rules.samples import growths, single_samples

__all__ = ["RULES", "ports_by_kind"]

_EFFECTIVE_BER, _RAW_BER, _HOT_C = 1e-12, 1e-5, 75.0
_FLAP_WINDOW_S = 6 * 3600


def ports_by_kind(ports: list[IbPort]) -> dict[str, list[IbPort]]:
    """Ports that should be alike: same card type (link layer where no type was printed)."""
    grouped: dict[str, list[IbPort]] = defaultdict(list)
    for port in ports:
        kind = port.ca_type if port.ca_type.strip(". ") else ""
        grouped[f"{kind} {port.layer}".strip()].append(port)
    return dict(grouped)


def down(case: Case) -> Iterator[Finding]:
    """IB-01."""
    open_ends = [end for end in case.of(FabricPort) if not end.peer]
    if open_ends:
        names = ", ".join(f"{end.node}/{end.port}" for end in open_ends[:6])
        what = (
            f"{len(open_ends)} switch port{'s have' if len(open_ends) > 1 else ' has'} nothing at the other end "
            f"({names}): unplugged, or the other side is down."
        )
        yield found("IB-01", what, *(end.at for end in open_ends), subject=names, severity="INFO")
    for ports in case.hosts(IbPort).values():
        for group in ports_by_kind(ports).values():
            active = [p for p in group if p.state == "Active"]
            spare = _spare_ports(group)
            for port in (p for p in group if p.state != "Active"):
                name, at = f"{port.device} port {port.port}", port.place("state")
                words = f"{name} is {port.state}" + (f", physically {port.physical}" if port.physical else "")
                if port.state == "Initializing" or (port.state in {"Down", "Armed"} and port.physical == "LinkUp"):
                    what = f"{words}: the cable is good, the subnet manager or the port's policy does not let it in."
                    yield found("IB-01", what, at, port.place("physical"), subject=port.device)
                elif (port.device, port.port) in spare:
                    yield found(
                        "IB-01",
                        f"{words}; the other port of the same card is Active (an unused second port?).",
                        at,
                        subject=port.device,
                        severity="INFO",
                    )
                elif active:
                    yield found(
                        "IB-01",
                        f"{words}; {len(active)} of its kind are Active.",
                        at,
                        port.place("physical"),
                        subject=port.device,
                    )
                else:
                    unused = port.physical == "Disabled" or port.layer == "Ethernet" or len(ports) > len(group)
                    what = f"{words}. No port of its kind is Active: unused, or not cabled."
                    yield found(
                        "IB-01", what, at, port.place("physical"), subject=port.device, severity="INFO" if unused else "WARN"
                    )


def _spare_ports(group: list[IbPort]) -> set[tuple[str, int]]:
    """Second ports of dual-port cards, when every card of the group has just one Active port."""
    cards: dict[str, list[IbPort]] = defaultdict(list)
    for port in group:
        cards[port.system_guid or port.device].append(port)
    patterns = {(len(ports), sum(p.state == "Active" for p in ports)) for ports in cards.values()}
    # A LinkUp port is cabled: it is no spare.
    if all(size > 1 and active == 1 for size, active in patterns):
        return {(p.device, p.port) for p in group if p.state != "Active" and p.physical != "LinkUp"}
    return set()


def slow(case: Case) -> Iterator[Finding]:
    """IB-02."""
    everywhere: dict[str, list[IbPort]] = defaultdict(list)
    for port in case.of(IbPort):
        if port.state == "Active" and port.rate_gbit_per_s:
            everywhere[f"{port.ca_type.strip('. ')} {port.layer}"].append(port)
    for group in everywhere.values():
        usual = mode(p.rate_gbit_per_s for p in group) or (
            max(p.rate_gbit_per_s or 0 for p in group) if len(group) == 2 else None
        )
        for port in group:
            rate = port.rate_gbit_per_s or 0.0
            if usual and rate < usual:
                what = (
                    f"{port.device} port {port.port} runs at {rate:g} Gb/s; "
                    f"{sum(p.rate_gbit_per_s == usual for p in group)} of its kind at {usual:g}."
                )
                yield found(
                    "IB-02", what, port.place("rate"), subject=port.device, severity="ERROR" if len(group) > 2 else "WARN"
                )
    for end in case.of(FabricPort):
        if end.could_be and end.peer:
            what = f"{end.node} port {end.port} to {end.peer} runs at {end.width} {end.speed}; it could be {end.could_be}."
            yield found("IB-02", what, end.at, subject=f"{end.node}/{end.port}")
    yield from _fabric_odd(case)


def _fabric_odd(case: Case) -> Iterator[Finding]:
    """ibnetdiscover knows no better rate: fewer lanes at the usual speed are a fault, other speeds another generation."""
    ends = [end for end in case.of(FabricPort) if end.peer and not end.could_be]
    usual = mode((end.width.lower(), end.speed) for end in ends)
    widths = {"1x": 1, "2x": 2, "4x": 4, "8x": 8, "12x": 12}
    for end in ends:
        if usual and widths.get(end.width.lower(), 4) < widths.get(usual[0], 4) and end.speed == usual[1]:
            what = f"{end.node} port {end.port} to {end.peer} runs on {end.width} lanes where most have {usual[0]}."
            yield found("IB-02", what, end.at, subject=f"{end.node}/{end.port}")


def flaps(case: Case) -> Iterator[Finding]:
    """IB-03."""
    for events in case.hosts(KernelEvent).values():
        losses: dict[str, list[KernelEvent]] = defaultdict(list)
        for event in events:
            if event.kind == "link-down" and not re.match(
                r"(?:veth|docker|br-|virbr|cali|cni|flannel|tap|vnet|lo\b)", event.device
            ):
                losses[event.device].append(event)
        for device, lost in losses.items():
            most = _most_within(lost)
            if most > 1:
                first = lost[0]
                what = f"{device} lost its link {most} times within 6 hours ({len(lost)} in all)."
                yield found("IB-03", what, *(e.at for e in lost), subject=device, since=(first.time_s, first.when))
    yield from _counted_flaps(case)


def _counted_flaps(case: Case) -> Iterator[Finding]:
    names = ("linkdownedcounter", "link_downed", "carrier_down_count", "rx_link_down_events_phy", "link_down_events_phy")
    for growth in growths(case):
        for name in names:
            if grown := growth.of(name):
                what = f"{growth.port} went down {grown} time{'s' * (grown > 1)} between two samples."
                yield found(
                    "IB-03", what, growth.last.places[name], growth.first.places[name], subject=growth.port, severity="ERROR"
                )
    for sample in single_samples(case):
        for name in names[:2]:
            if number := sample.values.get(name, 0):
                what = (
                    f"{sample.device or 'a port'}/{sample.port} went down {number} time{'s' * (number > 1)} since its "
                    f"counters were cleared; compare two samples."
                )
                yield found("IB-03", what, sample.places[name], subject=f"{sample.device}/{sample.port}", severity="INFO")


def _most_within(lost: list[KernelEvent]) -> int:
    """Most losses in one window; without times all of them."""
    times = sorted(e.time_s for e in lost if e.time_s is not None)
    if len(times) < len(lost):
        return len(lost)
    most, start = 0, 0
    for end, time_s in enumerate(times):
        while time_s - times[start] > _FLAP_WINDOW_S:
            start += 1
        most = max(most, end - start + 1)
    return most


# Counter names of perfquery and of sysfs -> (words, limit a second for WARN, limit a second for ERROR).
_PHYSICAL = {
    "symbolerrorcounter": ("symbol errors", 120 / 3600, 10.0),
    "symbol_error": ("symbol errors", 120 / 3600, 10.0),
    "linkerrorrecoverycounter": ("link recoveries", 5 / 60, 5 / 60),
    "link_error_recovery": ("link recoveries", 5 / 60, 5 / 60),
    "portrcverrors": ("receive errors", 10.0, 10.0),
    "port_rcv_errors": ("receive errors", 10.0, 10.0),
    "portxmitdiscards": ("transmit discards", 100.0, 1e18),
    "port_xmit_discards": ("transmit discards", 100.0, 1e18),
    "locallinkintegrityerrors": ("local link integrity errors", 0.0, 0.0),
    "local_link_integrity_errors": ("local link integrity errors", 0.0, 0.0),
    "excessivebufferoverrunerrors": ("buffer overruns", 0.0, 0.0),
    "excessive_buffer_overrun_errors": ("buffer overruns", 0.0, 0.0),
    "rx_symbol_err_phy": ("symbol errors", 120 / 3600, 10.0),
    "rx_crc_errors_phy": ("CRC errors", 1.0, 10.0),
}
_SINGLE = (
    "portrcverrors",
    "port_rcv_errors",
    "locallinkintegrityerrors",
    "local_link_integrity_errors",
    "excessivebufferoverrunerrors",
    "excessive_buffer_overrun_errors",
    "symbolerrorcounter",
    "symbol_error",
    "portlocalphysicalerrors",
    "portmalformedpkterrors",
)


def physical(case: Case) -> Iterator[Finding]:
    """IB-04."""
    for growth in growths(case):
        for name, (words, warn, error) in _PHYSICAL.items():
            grown, rate = growth.of(name), growth.rate(name)
            if not grown or (rate is not None and rate <= warn):
                continue
            severity = "ERROR" if rate is not None and rate > error else "WARN"
            pace = f" ({rate:.3g}/s)" if rate is not None else " (the samples are not timed)"
            what = f"{growth.port}: {grown} {words} between two samples{pace}."
            yield found(
                "IB-04", what, growth.last.places[name], growth.first.places[name], subject=growth.port, severity=severity
            )
    for sample in single_samples(case):
        counts = {name: sample.values[name] for name in _SINGLE if sample.values.get(name)}
        if counts:
            name, most = max(counts.items(), key=lambda item: item[1])
            what = f"{sample.device}/{sample.port}: {name} is {most}; since when is not known from one sample."
            yield found("IB-04", what, sample.places[name], subject=f"{sample.device}/{sample.port}")


def retries(case: Case) -> Iterator[Finding]:
    """IB-05."""
    limits = {
        "rnr_nak_retry_err": (0.0, "ERROR"),
        "local_ack_timeout_err": (1.0, "WARN"),
        "roce_slow_restart": (10.0, "WARN"),
        "packet_seq_err": (0.0, "WARN"),
    }
    for growth in growths(case):
        for name, (limit, severity) in limits.items():
            grown, rate = growth.of(name), growth.rate(name)
            if grown and (rate is None or rate > limit):
                pace = f" ({rate:.3g}/s)" if rate is not None else ""
                yield found(
                    "IB-05",
                    f"{growth.port}: {name} grew by {grown} between two samples{pace}.",
                    growth.last.places[name],
                    growth.first.places[name],
                    subject=growth.port,
                    severity=severity,
                )
    for sample in single_samples(case):
        for name, severity in (("rnr_nak_retry_err", "WARN"), ("local_ack_timeout_err", "WARN")):
            number = sample.values.get(name, 0)
            # A handful of timeouts over weeks is every fabric's: without times only a large count says something.
            if number >= (1 if name.startswith("rnr") else 100):
                what = (
                    f"{sample.device}/{sample.port}: {name} is {number}: packets or acknowledgements were lost; since "
                    f"when is not known."
                )
                yield found(
                    "IB-05", what, sample.places[name], subject=f"{sample.device}/{sample.port}".strip("/"), severity=severity
                )


def bit_errors(case: Case) -> Iterator[Finding]:
    """IB-06."""
    for optics in case.of(Optics):
        if optics.effective_ber is not None and optics.effective_ber > _EFFECTIVE_BER:
            place = optics.places.get("effective physical ber", optics.at)
            yield found(
                "IB-06",
                f"{optics.device}: effective bit error rate {optics.effective_ber:.3g}, above 1e-12.",
                place,
                subject=optics.device,
            )
        elif optics.raw_ber is not None and optics.raw_ber > _RAW_BER:
            place = optics.places.get("raw physical ber", optics.at)
            yield found(
                "IB-06",
                f"{optics.device}: raw bit error rate {optics.raw_ber:.3g}, above 1e-5; error correction still copes.",
                place,
                subject=optics.device,
                severity="WARN",
            )


def optics(case: Case) -> Iterator[Finding]:
    """IB-07."""
    for one in case.of(Optics):
        hot = min(_HOT_C, one.temperature_c_max or _HOT_C)
        if one.temperature_c is not None and one.temperature_c >= hot:
            yield found(
                "IB-07",
                f"{one.device}: module at {one.temperature_c:g} C, limit {hot:g} C.",
                one.places.get("temperature [c]", one.at),
                subject=one.device,
            )
        for way, levels, limits in (("receive", one.rx_dbm, one.rx_dbm_limits), ("transmit", one.tx_dbm, one.tx_dbm_limits)):
            outside = [level for level in levels if limits and not limits[0] <= level <= limits[1]]
            if outside and limits:
                place = one.places.get(f"{way[:1]}x power current [dbm]", one.at)
                what = (
                    f"{one.device}: {way} power {outside[0]:g} dBm on {len(outside)} of {len(levels)} lanes; the module "
                    f"allows {limits[0]:g} to {limits[1]:g}."
                )
                yield found("IB-07", what, place, subject=one.device)


def subnet_manager(case: Case) -> Iterator[Finding]:
    """IB-08."""
    for ports in case.hosts(IbPort).values():
        lost = [
            p for p in ports if p.layer == "InfiniBand" and (p.state == "Initializing" or (p.state == "Active" and p.sm_lid == 0))
        ]
        if lost:
            names = ", ".join(p.device for p in lost[:8])
            what = f"No subnet manager for {len(lost)} InfiniBand port{'s' * (len(lost) > 1)} ({names})."
            yield found("IB-08", what, lost[0].place("sm_lid" if lost[0].state == "Active" else "state"), subject=lost[0].device)


def firmware(case: Case) -> Iterator[Finding]:
    """IB-09."""
    groups: dict[str, list[IbPort]] = defaultdict(list)
    for port in case.of(IbPort):
        if port.firmware.strip(". ") and port.ca_type.strip(". "):
            groups[port.ca_type].append(port)
    for ca_type, ports in groups.items():
        usual = mode(p.firmware for p in ports)
        odd = [p for p in ports if p.firmware != usual]
        if usual is None and len({p.firmware for p in ports}) > 1:
            counted = ", ".join(f"{times} x {version}" for version, times in Counter(p.firmware for p in ports).most_common(4))
            yield found("IB-09", f"{ca_type} cards have different firmware: {counted}.", *(p.place("firmware") for p in ports))
        for host in dict.fromkeys(p.at.host for p in odd) if usual else ():
            mine = [p for p in odd if p.at.host == host]
            what = f"{ca_type}: firmware {mine[0].firmware} on {', '.join(p.device for p in mine[:4])}; most have {usual}."
            yield found("IB-09", what, *(p.place("firmware") for p in mine), subject=mine[0].device)


def gone(case: Case) -> Iterator[Finding]:
    """IB-10: gone while it was read, or fewer than described or than lspci shows. (Fewer than other nodes: rules/across.py.)"""
    for device in case.of(DeviceGone):
        what = (
            f"{device.device} vanished while the tool was reading it (or is not mapped into the container); ports "
            f"after it are missing from the output."
        )
        yield found("IB-10", what, device.at, subject=device.device)
    for host, ports in case.hosts(IbPort).items():
        devices = {p.device for p in ports}
        wanted = case.expected.nics
        if wanted is not None and len(devices) < wanted:
            yield found(
                "IB-10",
                f"{len(devices)} RDMA devices where the fabric describes {wanted} a node ({case.expected.source}).",
                ports[0].at,
            )
        slots = [d for d in case.hosts(PciDevice).get(host, []) if d.pci_class == "0207"]
        if wanted is None and slots and len(slots) > len([p for p in ports if p.layer == "InfiniBand"]):
            yield found(
                "IB-10",
                f"lspci shows {len(slots)} InfiniBand functions, the tools {len(devices)} devices.",
                ports[0].at,
                slots[0].at,
            )


def wrong_nics(case: Case) -> Iterator[Finding]:
    """IB-11."""
    for lists in case.hosts(NcclNics).values():
        nics = lists[0].nics
        layers = Counter(layer for _, _, layer in nics)
        if len(layers) > 1:
            few = layers.most_common()[-1][0]
            names = [name for name, _, layer in nics if layer == few]
            what = f"NCCL uses {dict(layers)} together: {', '.join(names[:4])} is {few}."
            yield found("IB-11", what.replace("{", "").replace("}", "").replace("'", ""), lists[0].at, subject=names[0])
            continue
        bonds = [name for name, _, _ in nics if "bond" in name]
        if bonds and len(bonds) < len(nics):
            yield found(
                "IB-11",
                f"{', '.join(bonds)} is a bond among {len(nics) - len(bonds)} single devices: mostly the management NIC.",
                lists[0].at,
                subject=bonds[0],
            )


_FAMILIES = (
    ("mlx5", "mlx5"),
    ("bnxt_re", "bnxt"),
    ("irdma", "irdma"),
    ("efa", "efa"),
    ("rdmap", "efa"),
    ("roceo", "roceo"),
    ("ionic", "ionic"),
)


def mixed_vendors(case: Case) -> Iterator[Finding]:
    """IB-12."""
    families: dict[str, NcclNics] = {}
    for nics in case.of(NcclNics):
        for name, _, _ in nics.nics:
            family = next((family for prefix, family in _FAMILIES if name.startswith(prefix)), "")
            if family:
                families.setdefault(family, nics)
    if len(families) > 1:
        yield found(
            "IB-12",
            f"NICs of {len(families)} driver families take part: {', '.join(families)}.",
            *(nics.at for nics in families.values()),
        )
    for events in case.hosts(NcclEvent).values():
        said = [event for event in events if event.kind == "incompatible-nics"]
        if said:
            yield found("IB-12", f"NCCL: {said[0].values['why'][:160]}", said[0].at, severity="ERROR")


_DRIVER_WORDS = {"mlx5-fatal": "ERROR", "mlx5-power": "WARN", "mlx5-hot": "WARN", "mlx5-cable": "WARN"}


def driver(case: Case) -> Iterator[Finding]:
    """IB-13."""
    for events in case.hosts(KernelEvent).values():
        seen: set[tuple[str, str]] = set()
        for event in events:
            if event.kind in _DRIVER_WORDS and (event.kind, event.device) not in seen:
                seen.add((event.kind, event.device))
                words = re.sub(r"^.*?mlx5_core ", "", event.text)[:160]
                yield found(
                    "IB-13",
                    f"{words}",
                    event.at,
                    subject=event.device,
                    severity=_DRIVER_WORDS[event.kind],
                    since=(event.time_s, event.when),
                )


def switch_hardware(case: Case) -> Iterator[Finding]:
    """SW-01."""
    for sensor in case.of(SwitchHealth):
        if sensor.status not in {"OK", "GOOD", "NORMAL", "PRESENT", "N/A"}:
            yield found("SW-01", f"{sensor.part} is {sensor.status}.", sensor.at, subject=sensor.part)


RULES = {
    "IB-01": down,
    "IB-02": slow,
    "IB-03": flaps,
    "IB-04": physical,
    "IB-05": retries,
    "IB-06": bit_errors,
    "IB-07": optics,
    "IB-08": subnet_manager,
    "IB-09": firmware,
    "IB-10": gone,
    "IB-11": wrong_nics,
    "IB-12": mixed_vendors,
    "IB-13": driver,
    "SW-01": switch_hardware,
}
