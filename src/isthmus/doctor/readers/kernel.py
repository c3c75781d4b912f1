"""The kernel log, syslog or journal: Xid and SXid, PCIe notes, links going down, mlx5, libnccl crashes, IOMMU."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.kernel import KernelEvent, PcieLimited, Xid
from isthmus.doctor.readers.stamps import stamp
from isthmus.doctor.text import Document, real

__all__ = ["read_kernel"]

_XID = re.compile(r"NVRM:\s*Xid\s*\((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)[^)]*\):?\s*(?P<code>\d+)(?:,\s*(?P<text>.*))?")
_SXID = re.compile(r"SXid\s*\(PCI:(?P<device>[0-9A-Fa-f:.]+)\):?\s*(?P<code>\d+)(?:,\s*(?P<text>.*))?")
_TOLD_XID = re.compile(r"[\s*#>\-|]*Xid\s*:?\s*(?P<code>\d{1,3})(?:\s*/\s*\d+)?\b(?P<text>.*)")
_LIMITED = re.compile(
    r"(?P<device>[0-9A-Fa-f:.]+): (?P<available>[\d.,]+) Gb/s available PCIe bandwidth, limited by .*? at (?P<limit>\S+) "
    r"\(capable of (?P<capable>[\d.,]+) Gb/s"
)
_LINK_DOWN = re.compile(r"(?P<device>[A-Za-z][\w.@-]*)\s*:\s+(?:lost carrier|(?:NIC )?link (?:is )?(?:down|lost))", re.IGNORECASE)
_LINK = re.compile(r"[Ll]ink (?P<link>\d+)")
_CAUSE = re.compile(r"caused by previous Xid (?P<code>\d+)")
_EVENTS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    # kind, a needle to look for first, the pattern that names the device
    (
        "fell-off",
        "fallen off the bus",
        re.compile(r"(?:PCI:|GPU )(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)|fallen off the bus"),
    ),
    ("mlx5-fatal", "health compromised", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    ("mlx5-fatal", "unrecoverable hardware error", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    ("mlx5-fatal", "Will cause a leak of a command resource", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    ("mlx5-fatal", "device's health compromised", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    (
        "mlx5-power",
        "insufficient power",
        re.compile(r"mlx5_core (?P<device>\S+?):? |(?P<other>\S+): Detected insufficient power"),
    ),
    ("mlx5-hot", "High Temperature", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    ("mlx5-cable", "Cable unplugged", re.compile(r"mlx5_core (?P<device>\S+?):? ")),
    ("nccl-crash", "segfault", re.compile(r"(?P<device>\S+)\[\d+\]: segfault .* in libnccl")),
    ("peermem-context", "nv_get_p2p_free_callback", re.compile(r"nvidia-peermem.*invalid context")),
    ("iommu", "Default domain type", re.compile(r"iommu: Default domain type: (?P<device>\w+)")),
    ("hypervisor", "Hypervisor detected", re.compile(r"Hypervisor detected: (?P<device>.+)")),
    ("cmdline", "Command line:", re.compile(r"Command line: (?P<device>.+)")),
)


def read_kernel(document: Document) -> Iterator[Xid | KernelEvent | PcieLimited]:
    """Facts of one log. An Xid that only prose names (a ticket's summary) is read too, without device or time."""
    for index, line in enumerate(document.lines):
        if "Xid" in line:
            yield from _xid(document, index, line)
        if "available PCIe bandwidth" in line and (limited := _LIMITED.search(line)):
            yield PcieLimited(
                at=document.place(index),
                device=limited["device"],
                limited_at=limited["limit"],
                available_bits_per_s=real(limited["available"]) * 1e9,
                capable_bits_per_s=real(limited["capable"]) * 1e9,
            )
        lowered = line.lower()
        if ("carrier" in lowered or "link" in lowered) and (down := _LINK_DOWN.search(line)):
            yield _event(document, index, "link-down", down["device"])
        for kind, needle, pattern in _EVENTS:
            if needle in line and (found := pattern.search(line)):
                device = found.groupdict().get("device") or found.groupdict().get("other") or ""
                yield _event(document, index, kind, device.strip().rstrip(":"))


def _event(document: Document, index: int, kind: str, device: str) -> KernelEvent:
    line = document.lines[index]
    time_s, when, host = stamp(line)
    return KernelEvent(
        at=document.place(index, document.host or host), kind=kind, device=device, text=line.strip(), time_s=time_s, when=when
    )


def _xid(document: Document, index: int, line: str) -> Iterator[Xid]:
    switch = "SXid" in line
    found = (_SXID if switch else _XID).search(line)
    if found is None and "NVRM" not in line and not switch:
        found = _TOLD_XID.match(line)
    if found is None:
        return
    time_s, when, host = stamp(line)
    text = (found["text"] or "").strip(" :,-")
    link, cause = _LINK.search(text), _CAUSE.search(text)
    device = found.groupdict().get("device") or _told_device(line)
    yield Xid(
        at=document.place(index, document.host or host),
        device=_address(device),
        code=int(found["code"]),
        text=text,
        switch=switch,
        time_s=time_s,
        when=when,
        link=int(link["link"]) if link else None,
        caused_by=int(cause["code"]) if cause else None,
    )


def _told_device(line: str) -> str:
    found = re.search(r"PCI[ :]+(?P<device>[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})", line)
    return found["device"] if found else ""


def _address(text: str) -> str:
    """`0000:9b:00` of the driver and `00000000:9B:00.0` of nvidia-smi name one device."""
    return text.lower().strip(":.")
