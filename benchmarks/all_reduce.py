"""All-reduce over two regions of two nodes in the wind tunnel: hierarchical over rails, beside gloo's flat one.

    python benchmarks/all_reduce.py [--quick] [--case NAME ...] [--tls] [--loopback] [--three] [--repeats N] [--json FILE]

The limit is what no all-reduce of full precision can beat: every byte of the tensor must leave each region once,

    W x 8 / (rate x 1448 / 1500) + RTT / 2

W = tensor bytes, rate counts IP bytes at MTU 1500 (TCP carries 1448 of 1500). Both ways run in the same ranks, over the
same link, in turns; rails are paced to the rate of the link, which the fabric states. Figures are medians of the times from
a common start until the last of the four ranks has finished.
`bare TCP` is the same bytes over as many connections between the same ranks, without frames, checksums or sums: how close to
the limit anything comes on this machine and its emulator.
`cold` is the first call on fresh connections, `idle` the first after 30 s without traffic.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nets import LoopbackNet, TunnelNet
from reducing import Ranks

REGIONS = {"shenzhen": 2, "shanghai": 2}
ENDS = ("shenzhen", "shanghai")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A link, the sizes to run on it, and how close to the limit the hierarchical one should come."""

    name: str
    rate_bytes_per_s: float
    rtt_s: float
    sizes_bytes: tuple[int, ...]
    goal: float
    loss: float = 0.0
    congestion: str = "bbr"
    repeats: int = 5
    idle_s: float = 30.0


CASES = (
    Case(name="100 Mb/s, 18 ms", rate_bytes_per_s=12.5e6, rtt_s=0.018, sizes_bytes=(16_000_000, 64_000_000), goal=1.05),
    Case(name="1 Gb/s, 60 ms", rate_bytes_per_s=125e6, rtt_s=0.060, sizes_bytes=(64_000_000,), goal=1.15),
    Case(name="100 Mb/s, 18 ms, 0.1% loss, cubic", rate_bytes_per_s=12.5e6, rtt_s=0.018, sizes_bytes=(16_000_000,),
         goal=1.25, loss=0.001, congestion="cubic"),
)
QUICK = (
    Case(name="200 Mb/s, 10 ms", rate_bytes_per_s=25e6, rtt_s=0.010, sizes_bytes=(8_000_000,), goal=1.5, repeats=3, idle_s=2.0),
)


def limit_s(case: Case, size_bytes: int) -> tuple[float, float]:
    """The two terms of the limit: bytes over rate, and half a round trip."""
    return size_bytes / (case.rate_bytes_per_s * 1448 / 1500), case.rtt_s / 2


def run_case(case: Case, only_bytes: int | None = None, *, tls: bool = False) -> list[dict[str, Any]]:
    """All sizes of one case: rows of figures."""
    from isthmus.emulate import EmulatedLink, TcpSettings, open_tunnel
    from isthmus.runtime.wan.shape import choose_streams

    link = EmulatedLink(between=ENDS, rate_bytes_per_s=case.rate_bytes_per_s, rtt_s=case.rtt_s, loss=case.loss)
    streams = choose_streams(case.rate_bytes_per_s, case.rtt_s, 2, case.loss)
    rows = []
    for size in case.sizes_bytes if only_bytes is None else (only_bytes,):
        with open_tunnel(REGIONS, [link], tcp=TcpSettings(congestion=case.congestion)) as tunnel:
            ranks = Ranks(TunnelNet(tunnel, REGIONS), streams, case.rate_bytes_per_s / 2, tls=tls)
            rows.append(measure(case, size, tunnel, ranks, tls=tls) | {"streams": streams})
            ranks.stop()
    return rows


def measure(case: Case, size: int, tunnel: Any, ranks: Ranks, *, tls: bool) -> dict[str, Any]:
    """Cold, warm (in turns) and idle figures of one size."""
    ways = ("hierarchical", "tls", "bare", "flat") if tls else ("hierarchical", "bare", "flat")
    cold = {way: ranks.ask(do=way, size_bytes=size)[0] for way in ways}
    warm: dict[str, list[float]] = {way: [] for way in ways}
    wire = {}
    for way in warm:
        ranks.ask(do=way, size_bytes=size)
    for _ in range(case.repeats):
        for way, seconds in warm.items():
            before = tunnel.counters()[ENDS].wire_bytes
            seconds.append(ranks.ask(do=way, size_bytes=size)[0])
            wire[way] = tunnel.counters()[ENDS].wire_bytes - before
    for codec in ("int8", "int4"):
        before = tunnel.counters()[ENDS].wire_bytes
        ranks.ask(do="hierarchical", codec=codec, size_bytes=size)
        wire[codec] = tunnel.counters()[ENDS].wire_bytes - before
    idle = {}
    time.sleep(case.idle_s)
    for way in warm:
        idle[way] = ranks.ask(do=way, size_bytes=size)[0]
    for command in ("refill", "flat", "keep", "refill", "hierarchical"):
        ranks.ask(do=command, size_bytes=size)
    hashes = set(ranks.ask(do="hash", size_bytes=size)[1])
    links = ranks.ask(do="links")[1][0]
    bytes_s, latency_s = limit_s(case, size)
    return {
        "case": case.name, "size_bytes": size, "goal": case.goal, "congestion": tunnel.congestion,
        "bytes_s": bytes_s, "latency_s": latency_s, "limit_s": bytes_s + latency_s, "warm": warm, "cold": cold, "idle": idle,
        "median": {way: statistics.median(seconds) for way, seconds in warm.items()}, "wire_bytes": wire,
        "bit_identical": len(hashes) == 1, "difference": max(ranks.ask(do="difference", size_bytes=size)[1]),
        "load_average": os.getloadavg()[0], "link": next(iter(links.values())),
        "late_p99_s": tunnel.counters()[ENDS].late_p99_s,
    }


def run_loopback(size: int, repeats: int = 7) -> bool:
    """Plain, TLS and gloo over 127.0.0.1 in turns; whether plain is as fast as gloo and TLS half as fast.

    All have one connection a pair of ranks, as gloo has.
    """
    kept = True
    for regions in ({"east": 1, "west": 1}, {"east": 2, "west": 2}):
        with tempfile.TemporaryDirectory() as folder:
            ranks = Ranks(LoopbackNet(Path(folder), regions), 1, None, tls=True)
            times: dict[str, list[float]] = {"hierarchical": [], "tls": [], "bare": [], "flat": []}
            spent: dict[str, list[float]] = {way: [] for way in times}
            for number in range(repeats + 1):
                for way, found in times.items():
                    seconds = ranks.ask(do=way, size_bytes=size)[0]
                    if number:
                        found.append(seconds)
                        spent[way].append(ranks.cpu_s)
            for command in ("refill", "flat", "keep", "refill", "hierarchical"):
                ranks.ask(do=command, size_bytes=size)
            equal = len(set(ranks.ask(do="hash", size_bytes=size)[1])) == 1
            difference = max(ranks.ask(do="difference", size_bytes=size)[1])
            ranks.stop()
        median = {way: statistics.median(found) for way, found in times.items()}
        print(f"\nloopback, {len(regions)} regions of {regions['east']}, {size / 1e6:g} MB; bits equal: {equal}; "
              f"largest difference to gloo's mean {difference:.1e}")
        kept = kept and equal and difference < 1e-6
        labels = (("hierarchical", "plain", 1.0), ("tls", "TLS", 0.5), ("bare", "bare", None), ("flat", "gloo", None))
        for way, label, goal in labels:
            ratio = median["flat"] / median[way]
            verdict = "" if goal is None else f" (goal >= {goal:g}: {'met' if ratio >= goal else 'MISSED'})"
            kept = kept and (goal is None or ratio >= goal)
            print(f"  {label:6s} {median[way]:.3f} s = {size / median[way] / 1e6:.0f} MB/s, {min(times[way]):.3f} to "
                  f"{max(times[way]):.3f}, n = {repeats}; {statistics.median(spent[way]):.3f} s of all ranks' processors: "
                  f"{ratio:.2f} x gloo's speed{verdict}", flush=True)
    return kept


# Between three regions: rate in bytes/s and round trip.
TRIANGLE = {("a", "b"): (12.5e6, 0.018), ("b", "c"): (12.5e6, 0.018), ("a", "c"): (6.25e6, 0.030)}


def run_three(size: int, repeats: int = 5) -> bool:
    """Three regions of one rank, links of unequal rate: shares fitted to the links, equal ones, and gloo, in turns.

    No all-reduce in which every region adds up a part of its own is faster than 2 W / (sum of the rates) + RTT, as long as
    all links are busy to the end (see `shape.choose_shares`); it crosses the WAN twice, half the longest RTT each time.
    """
    from isthmus.emulate import EmulatedLink, TcpSettings, open_tunnel
    from isthmus.runtime.wan.shape import choose_shares, choose_streams

    names = ["a", "b", "c"]
    rates = {name: {other: TRIANGLE[min(name, other), max(name, other)][0] for other in names if other != name} for name in names}
    shares = choose_shares([[rates[one].get(other, 0.0) for other in names] for one in names])
    links = [EmulatedLink(between=ends, rate_bytes_per_s=rate, rtt_s=rtt) for ends, (rate, rtt) in TRIANGLE.items()]
    limit = 2 * size / (sum(rate for rate, _ in TRIANGLE.values()) * 1448 / 1500) + max(rtt for _, rtt in TRIANGLE.values())
    times: dict[str, list[float]] = {"shares": [], "hierarchical": [], "flat": []}
    with open_tunnel(dict.fromkeys(names, 1), links, tcp=TcpSettings(congestion="bbr")) as tunnel:
        streams = max(choose_streams(rate, rtt) for rate, rtt in TRIANGLE.values())
        ranks = Ranks(TunnelNet(tunnel, dict.fromkeys(names, 1)), streams, rates, tls=False, shares=shares)
        for number in range(repeats + 1):
            for way, found in times.items():
                seconds = ranks.ask(do=way, size_bytes=size)[0]
                if number:
                    found.append(seconds)
        for command in ("refill", "shares"):
            ranks.ask(do=command, size_bytes=size)
        equal = len(set(ranks.ask(do="hash", size_bytes=size)[1])) == 1
        ranks.stop()
    print(f"\nthree regions, 100, 100 and 50 Mb/s, {size / 1e6:g} MB; shares {', '.join(f'{share:.3f}' for share in shares)}; "
          f"bits equal: {equal}\n  limit {limit:.3f} s = 2 W / (sum of rates x 1448 / 1500) + longest RTT")
    for way, label in (("shares", "fitted shares"), ("hierarchical", "equal shares"), ("flat", "gloo flat")):
        median = statistics.median(times[way])
        verdict = "" if way != "shares" else f" (goal <= 1.2: {'met' if median <= 1.2 * limit else 'MISSED'})"
        print(f"  {label:13s} {median:.3f} s = {median / limit:.3f} x limit, {min(times[way]) / limit:.3f} to "
              f"{max(times[way]) / limit:.3f}, n = {repeats}{verdict}", flush=True)
    return equal and statistics.median(times["shares"]) <= 1.2 * limit


def show(row: dict[str, Any]) -> None:
    """Print one row, both terms of its limit first."""
    limit, median = row["limit_s"], row["median"]
    print(f"\n{row['case']}: {row['size_bytes'] / 1e6:g} MB, {row['streams']} streams a rail, {row['link']['congestion']}")
    print(f"  limit {limit:.3f} s = {row['bytes_s']:.3f} s bytes / rate + {row['latency_s']:.3f} s RTT / 2")
    labels = {"hierarchical": "hierarchical", "tls": "inside TLS", "bare": "bare TCP", "flat": "gloo flat"}
    for way, label in labels.items():
        if way not in median:
            continue
        spread = row["warm"][way]
        print(f"  {label:13s} {median[way]:.3f} s = {median[way] / limit:.3f} x limit ({min(spread) / limit:.3f} to "
              f"{max(spread) / limit:.3f}, n = {len(spread)}), cold {row['cold'][way] / limit:.3f} x, "
              f"idle {row['idle'][way] / limit:.3f} x")
    wire = row["wire_bytes"]
    print("  wire bytes one way / tensor: " + ", ".join(f"{way} {count / row['size_bytes']:.4f}" for way, count in wire.items())
          + f"; int4 / fp32 {wire['int4'] / wire['hierarchical']:.4f}")
    verdict = "met" if median["hierarchical"] <= row["goal"] * limit else "MISSED"
    print(f"  goal <= {row['goal']:g} x: {verdict}; bits equal on all ranks: {row['bit_identical']}; largest difference to "
          f"gloo's mean {row['difference']:.1e}; {row['link']['retransmits']} retransmits on rail 0")
    if "tls" in median:
        print(f"  TLS costs {median['tls'] / median['hierarchical'] - 1:+.1%} (goal <= 5%: "
              f"{'met' if median['tls'] <= 1.05 * median['hierarchical'] else 'MISSED'})")
    print(f"  delay line late p99 {row['late_p99_s'] * 1e3:.2f} ms; load average {row['load_average']:.1f} on "
          f"{os.cpu_count()} cores", flush=True)


def main() -> int:
    """Run the cases; exit 1 when a goal is missed or ranks disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small case, for CI")
    parser.add_argument("--case", action="append", help="run only the case of this name")
    parser.add_argument("--mb", type=float, help="run only this size, in 10^6 bytes")
    parser.add_argument("--tls", action="store_true", help="also inside TLS, in the same ranks, in turns")
    parser.add_argument("--loopback", action="store_true", help="only on loopback, where the processor is the limit")
    parser.add_argument("--three", action="store_true", help="only three regions with unequal links")
    parser.add_argument("--repeats", type=int, help="turns in place of the case's own; 64 MB at 100 Mb/s takes 20 s a turn")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    if arguments.loopback:
        return 0 if run_loopback(int((arguments.mb or 64) * 1e6)) else 1
    if arguments.three:
        return 0 if run_three(int((arguments.mb or 16) * 1e6)) else 1
    rows = []
    for case in QUICK if arguments.quick else CASES:
        if arguments.case is None or case.name in arguments.case:
            case = case if arguments.repeats is None else replace(case, repeats=arguments.repeats)  # noqa: PLW2901
            for row in run_case(case, None if arguments.mb is None else int(arguments.mb * 1e6), tls=arguments.tls):
                show(row)
                rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    kept = all(row["bit_identical"] and row["median"]["hierarchical"] <= row["goal"] * row["limit_s"] for row in rows)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
