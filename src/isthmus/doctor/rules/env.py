"""The environment linter: every setting against the table, then settings against each other."""

import re
from collections.abc import Iterator

from isthmus.doctor.case import Case, numbers
from isthmus.doctor.env.table import Variable, meant, variables
from isthmus.doctor.env.values import as_integer, read_integer
from isthmus.doctor.facts.nccl import EnvSetting, NcclNics
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found

__all__ = ["RULES"]

_PLACEHOLDER = re.compile(r"\$|<[^>]*>|\{\{|\.\.\.")
_LEVELS = frozenset(["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"])


def _known(case: Case) -> Iterator[tuple[EnvSetting, Variable]]:
    """Settings of variables that the table has, once for each name and value."""
    seen: set[tuple[str, str, str]] = set()
    for setting in case.of(EnvSetting):
        key = (setting.name, setting.value, setting.at.host)
        if key not in seen and setting.name in variables() and not setting.unset:
            seen.add(key)
            yield setting, variables()[setting.name]


def _concrete(setting: EnvSetting) -> bool:
    return bool(setting.value) and not _PLACEHOLDER.search(setting.value)


def unknown(case: Case) -> Iterator[Finding]:
    """ENV-01."""
    seen: set[tuple[str, str]] = set()
    for setting in case.of(EnvSetting):
        if (setting.name, setting.at.host) in seen:
            continue
        seen.add((setting.name, setting.at.host))
        variable = variables().get(setting.name)
        if variable is not None and variable.status == "nonexistent":
            hint = f" {variable.meant} is probably meant." if variable.meant else ""
            yield found(
                "ENV-01",
                f"{setting.name} does not exist: {variable.does[0].lower() + variable.does[1:]}{hint}",
                setting.at,
                subject=setting.name,
            )
        elif variable is None and setting.name.startswith(("NCCL_", "BCCL_", "TORCH_NCCL_")):
            near = meant(re.sub(r"^BCCL_", "NCCL_", setting.name))
            if near:
                yield found(
                    "ENV-01", f"{setting.name} does not exist; {near} is probably meant.", setting.at, subject=setting.name
                )
            elif setting.name.startswith("NCCL_"):
                yield found(
                    "ENV-01",
                    f"No NCCL release reads {setting.name}; a script's own variable?",
                    setting.at,
                    subject=setting.name,
                    severity="INFO",
                )
    for setting in case.of(EnvSetting):
        if setting.name.upper() != setting.name and setting.name.upper() in variables() and not setting.unset:
            yield found(
                "ENV-01",
                f"{setting.name}: names are in capitals, {setting.name.upper()} is meant.",
                setting.at,
                subject=setting.name,
            )


def outdated(case: Case) -> Iterator[Finding]:
    """ENV-02."""
    for setting, variable in _known(case):
        version = case.nccl_version(setting.at.host)
        successor = variable.meant or (variable.deprecated.split("->")[1].strip() if "->" in variable.deprecated else "")
        instead = f"; {successor} is its successor" if successor else ""
        if variable.status == "removed" and not (version and variable.last and version <= numbers(variable.last)):
            until = f" since {variable.last}" if variable.last else ""
            yield found(
                "ENV-02",
                f"{setting.name} is not read any more{until}{instead}.",
                setting.at,
                subject=setting.name,
                severity="WARN",
            )
        elif version and variable.status == "documented" and variable.since and version < numbers(variable.since):
            yield found(
                "ENV-02",
                f"{setting.name} came with NCCL {variable.since}; {'.'.join(map(str, version))} does not know it.",
                setting.at,
                subject=setting.name,
                severity="WARN",
            )
        elif variable.status == "framework" and variable.meant:
            yield found(
                "ENV-02",
                f"{setting.name} is read by PyTorch under its new name {variable.meant}.",
                setting.at,
                subject=setting.name,
            )
        elif variable.deprecated and variable.status != "removed" and setting.name != "NCCL_LAUNCH_MODE":
            yield found(
                "ENV-02",
                f"{setting.name} is deprecated since {variable.deprecated.split(' ->')[0]}{instead}.",
                setting.at,
                subject=setting.name,
            )


def misread(case: Case) -> Iterator[Finding]:
    """ENV-03."""
    for setting, variable in _known(case):
        if not _concrete(setting) or variable.status in {"nonexistent", "marker", "removed"}:
            continue
        own = setting.name.startswith("NCCL_") and variable.status in {"documented", "undocumented"}
        if variable.kind in {"int", "bytes"} and own and not read_integer(setting.value).clean:
            reading = read_integer(setting.value)
            yield found("ENV-03", f"{setting.name}={setting.value}: {reading.why}.", setting.at, subject=setting.name)
        elif variable.kind == "level" and setting.value not in _LEVELS and not setting.value.isdecimal():
            upper = f" ({setting.value.upper()} is meant)" if setting.value.upper() in _LEVELS else ""
            yield found(
                "ENV-03",
                f"{setting.name}={setting.value} is no level that NCCL knows: it is ignored without a word{upper}.",
                setting.at,
                subject=setting.name,
            )
        elif (
            variable.status == "framework"
            and variable.kind == "int"
            and not re.fullmatch(r"-?\d+|true|false|on|off|yes|no", setting.value, re.IGNORECASE)
        ):
            yield found(
                "ENV-03", f"{setting.name}={setting.value} is no number.", setting.at, subject=setting.name, severity="WARN"
            )


def out_of_range(case: Case) -> Iterator[Finding]:
    """ENV-04."""
    for setting, variable in _known(case):
        if (
            _concrete(setting)
            and variable.status not in {"nonexistent", "marker", "removed"}
            and (why := _outside(setting, variable))
        ):
            yield found("ENV-04", f"{setting.name}={setting.value}: {why}.", setting.at, subject=setting.name)
    for setting in case.of(EnvSetting):
        if setting.name == "GLOO_SOCKET_IFNAME" and setting.value[:1] in {"^", "="}:
            yield found(
                "ENV-04",
                f"GLOO_SOCKET_IFNAME={setting.value}: Gloo takes names only, ^ and = are NCCL's.",
                setting.at,
                subject=setting.name,
            )
    yield from _crossed(case)


def _outside(setting: EnvSetting, variable: Variable) -> str:
    """Why a value is not allowed, or nothing."""
    match variable.kind:
        case "int" | "bytes":
            return _number_outside(as_integer(setting.value), variable)
        case "enum" if variable.accepts and setting.value.upper() not in variable.accepts:
            return f"it accepts {', '.join(variable.accepts)}"
        case "list":
            words = [word.strip() for word in setting.value.lstrip("^").upper().split(",")]
            return _not_among([word for word in words if word and word not in variable.accepts], variable)
        case "algorithms" | "protocols":
            known = {str(word).lower() for word in variable.accepts}
            words = [word.strip() for part in setting.value.split(";") for word in part.split(":")[-1].lstrip("^").split(",")]
            why = _not_among([word for word in words if word and word.lower() not in known], variable)
            return f"{why}; NCCL 2.24 and later refuse to start" if why else ""
        case _:
            return ""


def _not_among(wrong: list[str], variable: Variable) -> str:
    return f"{', '.join(wrong)} is not one of {', '.join(variable.accepts)}" if wrong else ""


def _number_outside(value: int | None, variable: Variable) -> str:
    if value is None or (value < 0 and variable.low is None and not variable.accepts):
        return ""  # NCCL's own "not set" is negative
    if variable.accepts:
        return "" if value in variable.accepts else f"it accepts {', '.join(map(str, variable.accepts))}"
    if (variable.low is not None and value < variable.low) or (variable.high is not None and value > variable.high):
        low = variable.low if variable.low is not None else 0
        return f"it is {low}..{variable.high}" if variable.high is not None else f"it is {low} or more"
    return ""


def _crossed(case: Case) -> Iterator[Finding]:
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        least, most = _last(case, low), _last(case, high)
        if least and most and (as_integer(least.value) or 0) > (as_integer(most.value) or 1 << 30):
            yield found("ENV-04", f"{low}={least.value} is above {high}={most.value}.", least.at, most.at, subject=low)


def _last(case: Case, name: str) -> EnvSetting | None:
    """The setting in force; None when it was unset later."""
    mine = [s for s in case.of(EnvSetting) if s.name == name]
    return mine[-1] if mine and not mine[-1].unset else None


def _on(case: Case, name: str) -> EnvSetting | None:
    setting = _last(case, name)
    return setting if setting and (as_integer(setting.value) or 0) != 0 else None


def forced_ll128(case: Case) -> Iterator[Finding]:
    """ENV-05."""
    for setting, _ in _known(case):
        if setting.name == "NCCL_PROTO" and re.search(r"\bLL128\b", setting.value, re.IGNORECASE) and "^" not in setting.value:
            yield found(
                "ENV-05", f"NCCL_PROTO={setting.value} allows LL128 also where NCCL would not.", setting.at, subject=setting.name
            )


def chunk(case: Case) -> Iterator[Finding]:
    """ENV-06."""
    setting = _last(case, "NCCL_CHUNK_SIZE")
    size = as_integer(setting.value) if setting else None
    if setting is None or size is None:
        return
    net, buffer = _last(case, "NCCL_P2P_NET_CHUNKSIZE"), _last(case, "NCCL_BUFFSIZE")
    step = min(
        as_integer(net.value) or 131072 if net else 131072, (as_integer(buffer.value) or 4194304 if buffer else 4194304) // 8
    )
    if size > step:
        yield found(
            "ENV-06",
            f"NCCL_CHUNK_SIZE={setting.value} is above the step of {step} bytes: send and receive give wrong results.",
            setting.at,
            subject=setting.name,
        )


def low_latency(case: Case) -> Iterator[Finding]:
    """ENV-07."""
    for setting, _ in _known(case):
        if setting.name in {"NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"}:
            value = as_integer(setting.value)
            odd = setting.name == "NCCL_LL128_BUFFSIZE" and value is not None and value % 120 != 0
            what = f"{setting.name}={setting.value}" + (
                " is not a multiple of 120: NCCL hangs or fails." if odd else ": the maintainers ask not to set it."
            )
            yield found("ENV-07", what, setting.at, subject=setting.name, severity="ERROR" if odd else "WARN")


def moot(case: Case) -> Iterator[Finding]:
    """ENV-08."""
    names = {s.name: s for s in case.of(EnvSetting) if not s.unset}
    no_rdma, net = _on(case, "NCCL_IB_DISABLE"), _last(case, "NCCL_NET")
    rdma_only = [s for name, s in names.items() if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE"]
    if no_rdma and rdma_only:
        yield found(
            "ENV-08", f"NCCL_IB_DISABLE=1 makes {_some(rdma_only)} moot.", rdma_only[0].at, no_rdma.at, subject=rdma_only[0].name
        )
    elif net and net.value.lower() == "socket" and rdma_only:
        yield found(
            "ENV-08", f"NCCL_NET=Socket makes {_some(rdma_only)} moot.", rdma_only[0].at, net.at, subject=rdma_only[0].name
        )
    threads = [names[n] for n in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD") if n in names]
    if threads and (any(p.state == "Active" for p in case.of(IbPort)) or (net and net.value.lower() != "socket")) and not no_rdma:
        yield found(
            "ENV-08",
            f"{_some(threads)} only {'matters' if len(threads) == 1 else 'matter'} for TCP; RDMA is in use.",
            threads[0].at,
            subject=threads[0].name,
        )
    provider = names.get("FI_PROVIDER")
    if provider and provider.value == "efa" and rdma_only:
        yield found(
            "ENV-08",
            f"EFA goes through its plugin: {_some(rdma_only)} is not read.",
            rdma_only[0].at,
            provider.at,
            subject=rdma_only[0].name,
        )
    yield from _moot_pairs(case, names)


def _some(settings: list[EnvSetting]) -> str:
    words = ", ".join(s.name for s in settings[:3])
    return words + (f" and {len(settings) - 3} more" if len(settings) > 3 else "")


_PAIRS = (
    # (this one off or on, value that counts, makes these moot, severity, words)
    ("NCCL_P2P_DISABLE", "on", ("NCCL_P2P_LEVEL", "NCCL_P2P_DIRECT_DISABLE"), "INFO", "without P2P there is no level"),
    (
        "NCCL_IB_GID_INDEX",
        "set",
        ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM"),
        "INFO",
        "they only steer the choice that a fixed index replaces",
    ),
    ("NCCL_CUMEM_ENABLE", "off", ("NCCL_MNNVL_ENABLE",), "WARN", "multi-node NVLink needs cuMem"),
    ("NCCL_RAS_ENABLE", "off", ("NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR"), "INFO", "the service is off"),
    ("NCCL_NVLS_ENABLE", "off", ("NCCL_NVLS_NCHANNELS", "NCCL_NVLS_CHUNKSIZE"), "INFO", "NVLink SHARP is off"),
)


def _moot_pairs(case: Case, names: dict[str, EnvSetting]) -> Iterator[Finding]:
    for name, state, others, severity, words in _PAIRS:
        setting = _last(case, name)
        value = as_integer(setting.value) if setting else None
        holds = value is not None and {"on": value != 0, "off": value == 0, "set": value >= 0}[state]
        mine = [names[other] for other in others if other in names]
        if setting and holds and mine:
            yield found(
                "ENV-08",
                f"{name}={setting.value} makes {_some(mine)} moot: {words}.",
                mine[0].at,
                setting.at,
                subject=mine[0].name,
                severity=severity,
            )
    level, plugin = _last(case, "NCCL_NET_GDR_LEVEL"), names.get("NCCL_IBEXT_DISABLE")
    if level and level.value in {"LOC", "0"}:
        yield found(
            "ENV-08",
            f"NCCL_NET_GDR_LEVEL={level.value} switches GPUDirect RDMA off.",
            level.at,
            subject=level.name,
            severity="WARN",
        )
    if plugin:
        yield found("ENV-08", "NCCL_IBEXT_DISABLE is read by the HPC-X plugin only.", plugin.at, subject=plugin.name)


def excluded(case: Case) -> Iterator[Finding]:
    """ENV-09."""
    for setting, _ in _known(case):
        if setting.name != "NCCL_SOCKET_IFNAME" or not setting.value.startswith("^"):
            continue
        listed = setting.value.removeprefix("^").removeprefix("=").split(",")
        lacks = [
            name
            for name in ("lo", "docker")
            if not any(name.startswith(word) or word.startswith(name) for word in listed if word)
        ]
        if lacks:
            what = (
                f"NCCL_SOCKET_IFNAME={setting.value} lets {' and '.join(lacks)} back in: the list replaces the "
                f"built-in exclusion."
            )
            yield found("ENV-09", what, setting.at, subject=setting.name)
        else:
            what = (
                f"NCCL_SOCKET_IFNAME={setting.value} excludes by name; every other bridge, tunnel or storage interface stays in."
            )
            yield found("ENV-09", what, setting.at, subject=setting.name, severity="INFO")


def hca_list(case: Case) -> Iterator[Finding]:
    """ENV-10."""
    devices = {p.device for p in case.of(IbPort)} | {name for nics in case.of(NcclNics) for name, _, _ in nics.nics}
    for setting, _ in _known(case):
        if setting.name != "NCCL_IB_HCA" or not _concrete(setting):
            continue
        body = re.sub(r"^\^?=?", "", setting.value)
        exact = "=" in setting.value[: len(setting.value) - len(body)]
        names = [name.split(":")[0] for name in body.split(",") if name]
        inside = [name for name in body.split(",") if name[:1] in {"^", "="}]
        also = sorted({d for d in devices for n in names if not exact and d != n and d.startswith(n) and d not in names})
        if inside:
            yield found(
                "ENV-10",
                (
                    f"NCCL_IB_HCA={setting.value}: {inside[0]} inside the list is taken as a name; the sign belongs "
                    f"before the whole list only."
                ),
                setting.at,
                subject=setting.name,
            )
        elif also:
            yield found(
                "ENV-10",
                f"NCCL_IB_HCA={setting.value} also takes {', '.join(also[:4])}: names without = are prefixes.",
                setting.at,
                subject=setting.name,
            )
        elif not exact and not devices and any(re.search(r"_[1-9]$", name) for name in names):
            yield found(
                "ENV-10",
                f"NCCL_IB_HCA={setting.value}: without = each name is a prefix ({_prefix_example(names)}).",
                setting.at,
                subject=setting.name,
                severity="INFO",
            )


def _prefix_example(names: list[str]) -> str:
    name = next(name for name in names if re.search(r"_[1-9]$", name))
    return f"{name} also takes {name}0"


# Variable -> (states that count: on, off, set; severity; why).
_LEFT_ON = {
    "NCCL_P2P_DISABLE": ("on", "WARN", "no NVLink inside the node"),
    "NCCL_SHM_DISABLE": ("on", "WARN", "the network is used inside the node"),
    "NCCL_NVLS_ENABLE": ("off", "WARN", "no NVLink SHARP"),
    "NCCL_ALGO": ("set", "WARN", "one algorithm for all sizes and shapes"),
    "NCCL_PROTO": ("set", "WARN", "one protocol for all sizes"),
    "NCCL_NTHREADS": ("set", "INFO", "NCCL chooses by GPU"),
    "NCCL_MIN_NCHANNELS": ("set", "INFO", "takes SMs from the program"),
    "NCCL_MAX_NCHANNELS": ("set", "INFO", "limits bandwidth"),
    "NCCL_GDR_FLUSH_DISABLE": ("on", "ERROR", "stale data after GPUDirect receives"),
    "NCCL_IGNORE_DISABLED_P2P": ("on", "WARN", "hides broken NVLinks"),
    "NCCL_LEGACY_CUDA_REGISTER": ("on", "WARN", "can hang"),
    "NCCL_PXN_DISABLE": ("on", "INFO", "costs all-to-all and far rails"),
    "NCCL_HOSTID": ("set", "WARN", "one value for several hosts makes NCCL use shared memory between them"),
    "NCCL_CUMEM_ENABLE": ("off", "INFO", "no multi-node NVLink, no user buffers"),
    "NCCL_IB_DISABLE": ("on", "WARN", "TCP instead of RDMA"),
    "NCCL_CHECK_POINTERS": ("on", "INFO", "a check on every call"),
    "NCCL_NET_SHARED_BUFFERS": ("off", "INFO", "more memory"),
}


def left_on(case: Case) -> Iterator[Finding]:
    """ENV-12."""
    for name, (state, severity, why) in _LEFT_ON.items():
        setting = _last(case, name)
        if setting is None or not _concrete(setting):
            continue
        value = as_integer(setting.value)
        if state == "set" or (value is not None and (value != 0) == (state == "on")):
            if name == "NCCL_PROTO" and setting.value.startswith("^"):
                severity = "INFO"  # noqa: PLW2901
            yield found(
                "ENV-12",
                f"{name}={setting.value}: {why}. Right for one test, seldom for a job.",
                setting.at,
                subject=name,
                severity=severity,
            )
    algo = _last(case, "NCCL_ALGO")
    version = case.nccl_version()
    if algo and algo.value.lower() == "tree" and version and version >= (2, 24):
        yield found(
            "ENV-12",
            "NCCL_ALGO=Tree: since 2.24 all-gather and reduce-scatter, which have no tree, fail with it.",
            algo.at,
            subject="NCCL_ALGO",
            severity="ERROR",
        )


def too_many_sockets(case: Case) -> Iterator[Finding]:
    """ENV-13."""
    threads, sockets = _last(case, "NCCL_SOCKET_NTHREADS"), _last(case, "NCCL_NSOCKS_PERTHREAD")
    if threads and sockets:
        product = (as_integer(threads.value) or 1) * (as_integer(sockets.value) or 1)
        if product > 64:
            yield found(
                "ENV-13",
                f"{threads.value} threads x {sockets.value} sockets = {product}; 64 is the most.",
                threads.at,
                sockets.at,
                subject=threads.name,
            )


RULES = {
    "ENV-01": unknown,
    "ENV-02": outdated,
    "ENV-03": misread,
    "ENV-04": out_of_range,
    "ENV-05": forced_ll128,
    "ENV-06": chunk,
    "ENV-07": low_latency,
    "ENV-08": moot,
    "ENV-09": excluded,
    "ENV-10": hca_list,
    "ENV-12": left_on,
    "ENV-13": too_many_sockets,
}
