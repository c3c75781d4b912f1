"""Roots and consequences: which finding explains which.

A rule that explains another does so on the same host, or on any host where the effect is a peer's. Where both carry
times of one clock the cause must not be later than the effect by more than a second, nor earlier by more than an hour.
"""

from dataclasses import replace

from isthmus.doctor.finding import Finding, rank

__all__ = ["explained"]

_HERE, _ANYWHERE = False, True
_LATEST_S, _EARLIEST_S = 1.0, 3600.0

# cause -> (effects, may the effect be on another host).
_EXPLAINS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("PCI-06", ("GPU-02", "NVL-10", "GPU-01", "NVL-01", "NVL-02", "NVL-08", "GPU-11"), _HERE),
    ("PCI-06", ("LOG-15", "LOG-16", "LOG-18", "LOG-06", "LOG-04", "LOG-07"), _ANYWHERE),
    ("NVL-07", ("NVL-03", "NVL-08", "NVL-09", "NVL-01", "NVL-12"), _HERE),
    ("NVL-10", ("GPU-02", "NVL-01", "NVL-02", "NVL-05", "NVL-13"), _HERE),
    ("NVL-10", ("LOG-15", "LOG-16", "LOG-18"), _ANYWHERE),
    ("NVL-01", ("NVL-02", "NVL-13", "TOPO-06", "NVL-12"), _HERE),
    ("NVL-03", ("BW-01",), _HERE),
    ("GPU-02", ("GPU-03", "GPU-04", "GPU-11", "LOG-19"), _HERE),
    ("GPU-02", ("LOG-15", "LOG-16", "LOG-18"), _ANYWHERE),
    ("GPU-05", ("GPU-07", "GPU-08", "BW-01"), _HERE),
    ("GPU-06", ("GPU-05",), _HERE),
    ("HOST-07", ("HOST-08",), _HERE),
    ("IB-13", ("IB-01", "IB-03", "LOG-10", "LOG-06", "IB-10"), _HERE),
    ("IB-01", ("LOG-01", "LOG-17", "IB-10"), _HERE),
    ("IB-01", ("LOG-06",), _ANYWHERE),
    ("IB-08", ("IB-01",), _HERE),
    ("IB-03", ("LOG-10",), _HERE),
    ("IB-03", ("LOG-06",), _ANYWHERE),
    ("IB-06", ("IB-03", "IB-04", "NVL-05"), _HERE),
    ("IB-07", ("IB-06", "IB-04", "IB-03"), _HERE),
    ("LOG-10", ("LOG-06", "LOG-07", "LOG-16"), _ANYWHERE),
    ("LOG-06", ("LOG-07", "LOG-15", "LOG-16", "LOG-18"), _ANYWHERE),
    ("LOG-08", ("LOG-07", "LOG-15", "LOG-16", "LOG-18"), _ANYWHERE),
    ("LOG-09", ("LOG-07", "LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-03", ("LOG-04", "LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-02", ("LOG-04",), _ANYWHERE),
    ("LOG-04", ("LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-12", ("LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-11", ("LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-14", ("LOG-16", "LOG-15"), _ANYWHERE),
    ("LOG-13", ("LOG-16", "LOG-15", "LOG-19"), _ANYWHERE),
    ("LOG-19", ("LOG-16", "LOG-15", "LOG-18"), _ANYWHERE),
    ("HOST-01", ("LOG-12",), _HERE),
    ("HOST-03", ("LOG-19",), _HERE),
    ("HOST-04", ("LOG-11",), _HERE),
    ("HOST-06", ("LOG-05",), _HERE),
    ("HOST-09", ("LOG-04",), _ANYWHERE),
    ("ROCE-03", ("ROCE-04", "ROCE-09", "IB-05", "ROCE-11"), _HERE),
    ("ROCE-04", ("ROCE-11", "IB-05"), _HERE),
    ("ROCE-02", ("ROCE-04", "ROCE-11"), _HERE),
    ("ROCE-08", ("ROCE-06", "ROCE-09", "BW-07"), _ANYWHERE),
    ("ENV-06", ("BW-02", "GPU-02"), _ANYWHERE),
    ("ENV-05", ("BW-02",), _ANYWHERE),
    ("LOG-05", ("BW-01",), _ANYWHERE),
    ("LOG-01", ("BW-01",), _ANYWHERE),
    ("PCI-01", ("GPU-09", "PCI-10", "BW-05"), _HERE),
    ("PCI-03", ("PCI-04", "GPU-09", "BW-05", "PCI-10"), _HERE),
    ("PCI-07", ("LOG-08", "BW-02", "TOPO-08"), _HERE),
    ("TOPO-06", ("NVL-12",), _HERE),
    ("GPU-01", ("TOPO-04",), _HERE),
    ("IB-10", ("TOPO-04", "LOG-17", "TOPO-01"), _HERE),
)


def explained(findings: list[Finding]) -> list[Finding]:
    """The findings, worst first, each consequence naming its root's key and each root what it explains."""
    by_rule: dict[str, list[int]] = {}
    for index, finding in enumerate(findings):
        by_rule.setdefault(finding.rule, []).append(index)
    cause: dict[int, int] = {}
    for name, effects, anywhere in _EXPLAINS:
        for effect_rule in effects:
            for effect in by_rule.get(effect_rule, []):
                source = next((c for c in by_rule.get(name, []) if _may(findings[c], findings[effect], anywhere)), None)
                if source is not None and effect not in cause and not _chain(cause, source, effect):
                    cause[effect] = source
    explains: dict[int, list[str]] = {}
    for effect, source in cause.items():
        explains.setdefault(source, []).append(findings[effect].key)
    told = [
        replace(f, cause=findings[cause[i]].key if i in cause else "", explains=tuple(explains.get(i, ())))
        for i, f in enumerate(findings)
    ]
    return _grouped(told)


def _grouped(findings: list[Finding]) -> list[Finding]:
    """Worst root first, its consequences right behind it: a root counts as bad as the worst that it explains."""
    by_key = {finding.key: finding for finding in findings}

    def root(finding: Finding) -> Finding:
        while finding.cause:
            finding = by_key[finding.cause]
        return finding

    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(root(finding).key, []).append(finding)
    ordered = sorted(groups.values(), key=lambda group: (min(rank(f)[0] for f in group), rank(root(group[0]))))
    return [finding for group in ordered for finding in sorted(group, key=lambda f: (bool(f.cause), rank(f)))]


def _may(cause: Finding, effect: Finding, anywhere: bool) -> bool:
    if cause.severity == "INFO" or (not anywhere and cause.host != effect.host):
        return False
    if cause.host == effect.host and cause.time_s is not None and effect.time_s is not None:
        return -_EARLIEST_S <= cause.time_s - effect.time_s <= _LATEST_S
    return True


def _chain(cause: dict[int, int], start: int, end: int) -> bool:
    """Does following causes from `start` come to `end`? Then naming it the cause of `end` would close a circle."""
    while start in cause:
        start = cause[start]
        if start == end:
            return True
    return start == end
