"""Facts from the kernel log and from what the kernel exports."""

from dataclasses import dataclass

from isthmus.doctor.text import Place

__all__ = ["AcsControl", "KernelEvent", "PciDevice", "PcieLimited", "Xid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One Xid (GPU) or SXid (NVSwitch) report of the driver.

    Attributes:
        device: PCI address.
        text: What follows the number.
        time_s: On whichever clock the log has; only differences count.
        when: The time as printed, or empty.
        link: NVLink number it speaks of, or None.
        caused_by: The Xid that the driver itself names as the cause, or None.
    """

    at: Place
    device: str
    code: int
    text: str
    switch: bool
    time_s: float | None
    when: str
    link: int | None
    caused_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """A line of the kernel log or of systemd that a rule looks at; `kind` is a word of the kernel reader."""

    at: Place
    kind: str
    device: str
    text: str
    time_s: float | None
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLimited:
    """The kernel's own note that a device gets less than it can: bits per second, and the port that limits."""

    at: Place
    device: str
    available_bits_per_s: float
    capable_bits_per_s: float
    limited_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcsControl:
    """One ACSCtl line: the switches that send peer traffic up to the root; device may be unknown in a cut paste."""

    at: Place
    device: str
    device_name: str
    source_validation: bool
    redirects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One function as lspci or sysfs shows it; speeds in GT/s, None where not printed.

    Attributes:
        pci_class: Four hex digits when known (0302 GPU, 0680 NVSwitch, 0604 bridge, 0200/0207 NIC), else empty.
        kind: gpu, nvswitch, nic, bridge or other.
        parent: Address of the bridge above, where the input shows it.
        narrowed: lspci itself says that the width is downgraded.
    """

    at: Place
    address: str
    pci_class: str
    kind: str
    name: str
    numa: str
    speed_gt: float | None
    speed_gt_max: float | None
    width: int | None
    width_max: int | None
    read_request_bytes: int | None
    source: str
    link_at: Place
    parent: str
    narrowed: bool
