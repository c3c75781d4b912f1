"""Rules about the host: limits, shared memory, CPUs, modules, clocks, firewall."""

import re
from collections.abc import Iterator

from isthmus.doctor.case import Case, numbers
from isthmus.doctor.facts.host import ClockState, CpuFrequency, Firewall, HostSetting, SharedMemory, Version
from isthmus.doctor.facts.kernel import KernelEvent
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found

__all__ = ["RULES"]

_OFFSET_WARN_S, _OFFSET_ERROR_S = 1e-3, 10e-3


def _settings(case: Case, name: str) -> Iterator[HostSetting]:
    return (setting for setting in case.of(HostSetting) if setting.name == name)


def memlock(case: Case) -> Iterator[Finding]:
    """HOST-01."""
    for setting in _settings(case, "ulimit -l"):
        if setting.value not in {"unlimited", "-1"}:
            rdma = any(p.state == "Active" for p in case.hosts(IbPort).get(setting.at.host, []))
            what = f"Processes may lock {setting.value} KiB" + ("; this host has RDMA." if rdma else ".")
            yield found("HOST-01", what, setting.at, severity="ERROR" if rdma else "INFO")


def open_files(case: Case) -> Iterator[Finding]:
    """HOST-02."""
    for setting in _settings(case, "ulimit -n"):
        if setting.value.isdecimal() and int(setting.value) < 32768:
            yield found("HOST-02", f"{setting.value} open files are allowed; NCCL's guide asks for 131072.", setting.at)


def stack(case: Case) -> Iterator[Finding]:
    """HOST-03."""
    for setting in _settings(case, "ulimit -s"):
        version = case.nccl_version(setting.at.host)
        if setting.value == "unlimited" and (version is None or version < (2, 28)):
            what = "The stack is unlimited: NCCL before 2.28 then gives its threads 2 MB."
            yield found("HOST-03", what, setting.at, severity="ERROR" if version else "INFO")


def shared_memory(case: Case) -> Iterator[Finding]:
    """HOST-04."""
    for shm in case.of(SharedMemory):
        if shm.size_bytes < 2**30:
            yield found("HOST-04", f"/dev/shm has {shm.size_bytes / 2**20:.0f} MiB.", shm.at)


def cpu(case: Case) -> Iterator[Finding]:
    """HOST-05."""
    for cpus in case.hosts(CpuFrequency).values():
        lazy = [c for c in cpus if c.governor and c.governor != "performance"]
        if lazy:
            what = f"Governor {lazy[0].governor} on {len(lazy)} of {len(cpus)} CPUs shown."
            yield found("HOST-05", what, *(c.at for c in lazy), subject=lazy[0].governor)
    for setting in _settings(case, "clocksource"):
        if setting.value in {"hpet", "acpi_pm", "jiffies", "pit"} or "unstable" in setting.value:
            yield found(
                "HOST-05",
                f"The clock source is {setting.value}, not tsc: every time stamp costs a device access.",
                setting.at,
                subject="clocksource",
            )


def peermem(case: Case) -> Iterator[Finding]:
    """HOST-06."""
    for host, settings in case.hosts(HostSetting).items():
        modules = {s.name.removeprefix("module ") for s in settings if s.name.startswith("module ")}
        rdma = any(p.state == "Active" for p in case.hosts(IbPort).get(host, [])) or modules & {
            "mlx5_ib",
            "efa",
            "bnxt_re",
            "irdma",
        }
        kernel = next((numbers(v.version) for v in case.hosts(Version).get(host, []) if v.software == "kernel"), None)
        closed = any(s.name == "driver type" and s.value == "closed" for s in settings)
        if (
            "nvidia" in modules
            and not modules & {"nvidia_peermem", "nv_peer_mem"}
            and rdma
            and (closed or (kernel is not None and kernel < (5, 12)))
        ):
            why = "the driver is the closed one" if closed else f"kernel {'.'.join(map(str, kernel or ()))} is before 5.12"
            at = next(s.at for s in settings if s.name == "module nvidia")
            yield found("HOST-06", f"nvidia_peermem is not loaded, and {why}: GPUDirect RDMA has no way.", at)
    for host, events in case.hosts(KernelEvent).items():
        context = [e for e in events if e.kind == "peermem-context"]
        if context:
            what = (
                f"nvidia-peermem met an invalid context {len(context)} time{'s' * (len(context) > 1)}: GPU memory was "
                f"freed while registered, mostly by a killed job."
            )
            yield found(
                "HOST-06",
                what,
                *(e.at for e in context),
                subject=host,
                severity="INFO",
                since=(context[0].time_s, context[0].when),
            )


def _clocks(case: Case) -> Iterator[tuple[str, list[ClockState]]]:
    yield from case.hosts(ClockState).items()


def unsynchronised(case: Case) -> Iterator[Finding]:
    """HOST-07: the last word of each tool; a log's faults count also when they passed."""
    for _, states in _clocks(case):
        for tool in dict.fromkeys(s.tool for s in states):
            mine = [s for s in states if s.tool == tool and s.synchronised is not None]
            bad = [s for s in mine if s.synchronised is False]
            if bad and mine[-1].synchronised is False:
                yield found("HOST-07", f"{bad[-1].message}.", *(s.at for s in bad[::-1]), subject=tool)
            elif bad:
                yield found("HOST-07", f"{bad[0].message}; it has recovered.", *(s.at for s in bad), subject=tool)


def offset(case: Case) -> Iterator[Finding]:
    """HOST-08."""
    for _, states in _clocks(case):
        for tool in dict.fromkeys(s.tool for s in states):
            known = [s for s in states if s.tool == tool and s.offset_s is not None]
            if not known:
                continue
            worst = max(known, key=lambda s: abs(s.offset_s or 0.0))
            size = abs(worst.offset_s or 0.0)
            if size > _OFFSET_WARN_S:
                what = f"The clock is {_seconds(size)} off ({worst.message})."
                yield found(
                    "HOST-08",
                    what,
                    worst.at,
                    subject=tool,
                    severity="ERROR" if size > _OFFSET_ERROR_S and worst is known[-1] else "WARN",
                )
            elif worst.bound_s is not None and worst.bound_s > _OFFSET_ERROR_S:
                what = f"The clock is within {_seconds(worst.bound_s)} at worst: the time server is far away."
                yield found("HOST-08", what, worst.at, subject=tool, severity="INFO")


def _seconds(value: float) -> str:
    return next(
        f"{value * scale:.4g} {unit}"
        for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns"))
        if value * scale >= 1 or unit == "ns"
    )


def firewall(case: Case) -> Iterator[Finding]:
    """HOST-09."""
    for wall in case.of(Firewall):
        if wall.chain == "input" and wall.policy in {"drop", "reject"} and not wall.accepts:
            yield found(
                "HOST-09",
                f"The input chain's policy is {wall.policy}, and no rule shown accepts everything from the cluster.",
                wall.at,
            )
    for setting in _settings(case, "sysctl net.ipv4.ip_local_port_range"):
        ports = [int(word) for word in re.findall(r"\d{1,6}", setting.value)]
        if len(ports) == 2 and ports[1] - ports[0] < 1000:
            yield found("HOST-09", f"Only {ports[1] - ports[0] + 1} ephemeral ports ({ports[0]}-{ports[1]}).", setting.at)


def remove_ipc(case: Case) -> Iterator[Finding]:
    """HOST-10."""
    for setting in _settings(case, "logind RemoveIPC"):
        commented = setting.at.text.lstrip().startswith("#")
        if setting.value.lower() in {"yes", "true", "1", "on"} and not commented:
            yield found("HOST-10", "systemd-logind removes IPC objects when a user's last session ends.", setting.at)


RULES = {
    "HOST-01": memlock,
    "HOST-02": open_files,
    "HOST-03": stack,
    "HOST-04": shared_memory,
    "HOST-05": cpu,
    "HOST-06": peermem,
    "HOST-07": unsynchronised,
    "HOST-08": offset,
    "HOST-09": firewall,
    "HOST-10": remove_ipc,
}
