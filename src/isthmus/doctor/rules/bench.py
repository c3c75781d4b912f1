"""Rules about benchmarks."""

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median

from isthmus.doctor.case import Case
from isthmus.doctor.facts.bench import BandwidthRow, BenchmarkTable, NicScaling, PairBandwidth, RdmaBandwidth
from isthmus.doctor.facts.network import IbPort
from isthmus.doctor.finding import Finding, found

__all__ = ["RULES"]

_LARGE, _CLIFF_FROM, _ONE_NODE_SIZE = 64 * 2**20, 2**20, 2**30
_ONE_NODE = ((r"H200", 480.0), (r"H100.*(?:HBM3|SXM)|H100 80GB", 460.0), (r"A100.*SXM", 228.0))
_SHARE_OF_EXPECTED, _ONE_PORT_GBYTE = 0.85, 25.0


def _largest(table: BenchmarkTable) -> BandwidthRow | None:
    return max(table.rows, key=lambda row: row.size_bytes, default=None)


def _useless(table: BenchmarkTable) -> bool:
    """Bus bandwidth is 0 at every size by definition when there is one rank. A header that was cut off proves nothing."""
    if any(row.busbw_gbyte_per_s for row in table.rows):
        return False
    large = any(row.size_bytes >= 2**20 for row in table.rows) and len(table.rows) > 3
    return table.headers > 1 or table.ranks == 1 or large


def below(case: Case) -> Iterator[Finding]:
    """BW-01."""
    for table in case.of(BenchmarkTable):
        row = _largest(table)
        if row is None or _useless(table):
            continue
        best = max(r.busbw_gbyte_per_s for r in table.rows if r.size_bytes >= row.size_bytes // 8)
        expected = case.expected.busbw_gbyte_per_s(table) if case.expected.busbw_gbyte_per_s else None
        reference = next(
            (value for pattern, value in _ONE_NODE if re.search(pattern, table.device or case.model(table.at.host))), None
        )
        alone = len(table.hosts) == 1 and table.ranks == 8 and table.operation in {"all_reduce", ""}
        if expected is not None and row.size_bytes >= _LARGE:
            if best < _SHARE_OF_EXPECTED * expected:
                what = (
                    f"{best:.4g} of {expected:.4g} GB/s bus bandwidth at {_size(row)}: "
                    f"{_signature(table, best, expected)}. Expected: {case.expected.source}."
                )
                yield found("BW-01", what, row.at)
        elif alone and reference and row.size_bytes >= _ONE_NODE_SIZE:
            if best < reference:
                yield found(
                    "BW-01", f"{best:.4g} GB/s on one node of 8 ({table.device}); healthy ones reach {reference:g}.", row.at
                )
        elif 0 < best < _ONE_PORT_GBYTE and row.size_bytes >= _LARGE:
            what = (
                f"{best:.4g} GB/s at {_size(row)} is less than one 200 Gb/s port carries; say what the fabric is "
                f"(--fabric) for a verdict."
            )
            yield found("BW-01", what, row.at, severity="INFO")


def _size(row: BandwidthRow) -> str:
    size = row.size_bytes
    return next(
        f"{size / 2**bits:g} {unit}"
        for bits, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))
        if size >= 2**bits or not bits
    )


def _signature(table: BenchmarkTable, best: float, expected: float) -> str:
    """What the shortfall looks like."""
    share = best / expected
    if _cliff(table):
        return "large sizes collapse, which is loss or pauses (BW-07)"
    if len(table.hosts) == 1:
        return _signature_in_a_node(share)
    if 0.4 < share < 0.6:
        return "about half, the signature of one rail, socket or port of two missing"
    if share < 0.15:
        return "a tenth or less, the signature of TCP sockets or of GPUDirect RDMA being off (LOG-01, LOG-05)"
    if share > 0.7:
        return "a little less on every size: a slow link among many, or ACS, IOMMU, PCIe (PCI-03, PCI-07)"
    return "a slower rail, a far NIC or a slow node; pairwise tests find it (BW-04)"


def _signature_in_a_node(share: float) -> str:
    """The same inside one node, where no adapter takes part."""
    if share < 0.15:
        return "a tenth or less, the signature of PCIe or host memory in place of NVLink (P2P off, ACS, no shared memory)"
    if share > 0.7:
        return "what a ring reaches: the switch does not add (NVLS off, or the fabric manager not up), or clocks are low"
    return "NVLinks or switches missing, or a power cap: nvidia-smi nvlink -s, nvidia-smi -q -d PERFORMANCE"


def wrong(case: Case) -> Iterator[Finding]:
    """BW-02."""
    for table in case.of(BenchmarkTable):
        rows = [row for row in table.rows if row.wrong]
        if rows or table.out_of_bounds:
            many = sum(row.wrong or 0 for row in rows) or table.out_of_bounds
            what = f"{many} wrong values" + (f", first at {_size(rows[0])}." if rows else " in the summary.")
            yield found("BW-02", what, rows[0].at if rows else table.average_at or table.at)


def scaling(case: Case) -> Iterator[Finding]:
    """BW-03."""
    for series in case.of(NicScaling):
        drop = _drop(series)
        if drop:
            (fewer, high), (more, low) = drop
            yield found(
                "BW-03", f"{series.label}: {more} NICs give {low:g} GB/s, {fewer} give {high:g}.", series.at, subject=series.label
            )


def _drop(series: NicScaling) -> tuple[tuple[int, float], tuple[int, float]] | None:
    return next(
        (
            pair
            for pair in zip(series.points, series.points[1:], strict=False)
            if pair[1][1] < 0.95 * pair[0][1] and pair[1][0] > pair[0][0]
        ),
        None,
    )


def pairs(case: Case) -> Iterator[Finding]:
    """BW-04."""
    results = case.of(PairBandwidth)
    if len(results) < 3:
        return
    best = max(p.gbyte_per_s for p in results)
    usual = median(p.gbyte_per_s for p in results)
    # With several bad nodes in a short list most pairs are slow: then the best pairs, when two are alike, tell what is normal.
    if usual < 0.8 * best and sum(p.gbyte_per_s > 0.9 * best for p in results) > 1:
        usual = median(p.gbyte_per_s for p in results if p.gbyte_per_s > 0.9 * best)
    slow: list[PairBandwidth] = [p for p in results if p.gbyte_per_s < 0.8 * usual]
    fine = {name for p in results if p not in slow for name in (p.first, p.second)}
    blamed = Counter(name for p in slow for name in (p.first, p.second) if name not in fine)
    while slow and blamed:
        name, times = blamed.most_common(1)[0]
        mine: list[PairBandwidth] = [p for p in slow if name in (p.first, p.second)]
        what = f"{name} is in {times} of {len(slow)} slow pairs ({mine[0].gbyte_per_s:g} where {usual:g} GB/s are usual)" + (
            "."
            if times > 1
            else "; its partner there is tested nowhere else."
            if blamed[_other(mine[0], name)]
            else ", its partner is good elsewhere."
        )
        yield found(
            "BW-04",
            what,
            *(p.at for p in mine),
            subject=name,
            severity="ERROR" if times > 1 or not blamed[_other(mine[0], name)] else "WARN",
        )
        slow = [p for p in slow if p not in mine]
        blamed = Counter(other for p in slow for other in (p.first, p.second) if other not in fine)


def _other(pair: PairBandwidth, name: str) -> str:
    return pair.second if pair.first == name else pair.first


def rdma(case: Case) -> Iterator[Finding]:
    """BW-05."""
    for host, rows in case.hosts(RdmaBandwidth).items():
        large = [row for row in rows if row.size_bytes >= 65536]
        ports = {p.device: p.rate_gbit_per_s for p in case.hosts(IbPort).get(host, []) if p.rate_gbit_per_s}
        for row in large[-1:]:
            rate = ports.get(row.device) or case.expected.nic_rate_gbit_per_s
            if rate and row.gbit_per_s < 0.9 * rate:
                yield found(
                    "BW-05",
                    f"{row.device or 'The port'} carries {row.gbit_per_s:.4g} of {rate:g} Gb/s.",
                    row.at,
                    subject=row.device,
                )


def nothing(case: Case) -> Iterator[Finding]:
    """BW-06."""
    for table in case.of(BenchmarkTable):
        if _useless(table):
            why = (
                "several jobs of one rank ran side by side (built without MPI=1?)"
                if table.headers > 1
                else "it has one rank, so bus bandwidth is 0"
            )
            yield found("BW-06", f"The table says nothing about the network: {why}.", table.at)


def _cliff(table: BenchmarkTable) -> tuple[BandwidthRow, BandwidthRow] | None:
    rows = [row for row in table.rows if row.size_bytes >= _CLIFF_FROM]
    if len(rows) < 3:
        return None
    last, best = max(rows, key=lambda row: row.size_bytes), max(rows, key=lambda row: row.busbw_gbyte_per_s)
    return (
        (last, best)
        if best.busbw_gbyte_per_s > 1
        and last.busbw_gbyte_per_s < 0.5 * best.busbw_gbyte_per_s
        and best.size_bytes < last.size_bytes
        else None
    )


def cliff(case: Case) -> Iterator[Finding]:
    """BW-07."""
    for table in case.of(BenchmarkTable):
        if ends := _cliff(table):
            last, best = ends
            what = f"{best.busbw_gbyte_per_s:g} GB/s at {_size(best)} fall to {last.busbw_gbyte_per_s:g} at {_size(last)}."
            yield found("BW-07", what, last.at, best.at)


RULES = {"BW-01": below, "BW-02": wrong, "BW-03": scaling, "BW-04": pairs, "BW-05": rdma, "BW-06": nothing, "BW-07": cliff}
