"""Does the emulated link hold what it is asked? Prints asked against measured; exits 1 when a bound of issue 2, A5 fails.

    python benchmarks/link_fidelity.py [--load idle|busy|both] [--quick] [--json FILE]

Bounds: rate within 5% of rate x 1448/1500 (TCP payload per IP byte at MTU 1500), median RTT within 1 ms, loss
within 10% of the asked over 10^6 packets and in single drops, jitter within its peak and without reordering,
queueing delay up to the queue limit and no further. `busy` adds four computing ranks on whatever cores there
are. Senders, receivers and pingers are this file again, started inside the nodes; they run above the ranks
and below the delay line.
"""

import argparse
import fcntl
import json
import os
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus.emulate import EmulatedLink, TcpSettings, Tunnel, open_tunnel

PAYLOAD, PACKET = 1472, 1500  # UDP payload of a packet of 1,500 IP bytes
_UDP_SEGMENT, _UDP_GRO, _SO_RCVBUFFORCE = 103, 104, 33
_PORT = 5201


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure and its bound."""

    what: str
    load: str
    asked: float
    measured: float
    error: float
    bound: float
    note: str = ""

    @property
    def good(self) -> bool:
        return abs(self.error) <= self.bound


# --- programs that run inside the nodes
# -------------------------------------------------------------------------------


def tcp_receive(streams: int, skip_s: float, measure_s: float) -> None:
    """Print the bytes/s that arrive over `streams` connections between `skip_s` and `skip_s + measure_s`."""
    listener = socket.create_server(("0.0.0.0", _PORT), backlog=streams)
    print("ready", flush=True)
    buffer = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            connection = listener.accept()[0]
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        begin = time.monotonic() + skip_s
        total = 0
        first = last = None
        while (now := time.monotonic()) < begin + measure_s:
            for key, _ in selector.select(0.2):
                size = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                now = time.monotonic()
                if now >= begin and first is None:
                    first, size = now, 0
                total += size if first is not None else 0
                last = now
    print(total / (last - first) if first and last and last > first else 0.0, flush=True)


def tcp_send(address: str, streams: int, window_bytes: int) -> None:
    """Keep `streams` connections full until killed.

    All together have `window_bytes` on the way at most, which fills the link without overflowing its queue:
    it is the link that is measured here, and not how a congestion control recovers from its own losses.
    """
    sockets = [socket.create_connection((address, _PORT)) for _ in range(streams)]
    block = memoryview(bytes(window_bytes // streams))
    outstanding = bytearray(4)
    for each in sockets:
        each.setblocking(False)
    while True:
        for each in sockets:
            fcntl.ioctl(each, termios.TIOCOUTQ, outstanding)
            room = len(block) - int.from_bytes(outstanding, sys.byteorder)
            if room >= len(block) // 8:
                try:
                    each.send(block[:room])
                except BlockingIOError:
                    pass
                except OSError:
                    return
        time.sleep(0.0002)


def ping(address: str, count: int, interval_s: float) -> None:
    """Print the round trips in seconds of `count` ICMP echoes, as JSON; lost ones are left out."""
    icmp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    icmp.settimeout(1.0)
    found: list[float] = []
    for sequence in range(count + 3):
        sent = time.monotonic()
        icmp.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, sequence) + bytes(48), (address, 0))
        try:
            while struct.unpack_from("!H", icmp.recv(2048), 6)[0] != sequence:
                pass
        except TimeoutError:
            continue
        now = time.monotonic()
        if sequence >= 3:  # the first ones resolve addresses
            found.append(now - sent)
        time.sleep(max(0.0, sent + interval_s - now))
    print(json.dumps(found), flush=True)


def udp_send(address: str, packets: int, rate_bytes_per_s: float) -> None:
    """Send `packets` numbered datagrams, each one IP packet of 1,500 bytes, at an even rate."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, PAYLOAD)
    udp.connect((address, _PORT))
    filler = bytes(PAYLOAD - 8)
    burst = max(1, min(43, int(rate_bytes_per_s * 0.0006 / PACKET)))
    due = time.monotonic()
    for first in range(0, packets, burst):
        numbers = range(first, min(first + burst, packets))
        udp.send(b"".join(struct.pack("!Q", number) + filler for number in numbers))
        due += len(numbers) * PACKET / rate_bytes_per_s
        if (ahead := due - time.monotonic()) > 0:
            time.sleep(ahead)
    print("sent", flush=True)


def udp_receive(packets: int) -> None:
    """Print what arrived of `packets` numbered datagrams: number, runs of missing ones, out of order, corrupt, seconds."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    except PermissionError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    udp.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    udp.bind(("0.0.0.0", _PORT))
    print("ready", flush=True)
    seen = bytearray(packets)
    order = corrupt = 0
    highest, begin, end = -1, 0.0, 0.0
    filler = bytes(PAYLOAD - 8)
    while True:
        udp.settimeout(3.0 if begin else 30.0)
        try:
            data, _, _, _ = udp.recvmsg(65536, 64)
        except TimeoutError:
            break
        end = time.monotonic()
        begin = begin or end
        for at in range(0, len(data), PAYLOAD):
            number = int.from_bytes(data[at : at + 8], "big")
            if number >= packets or seen[number] or data[at + 8 : at + PAYLOAD] != filler:
                corrupt += 1
                continue
            seen[number] = 1
            order += number < highest
            highest = max(highest, number)
    runs = [len(run) for run in bytes(seen).split(b"\1") if run]
    print(json.dumps({"arrived": sum(seen), "missing": packets - sum(seen), "runs": len(runs),
                      "longest": max(runs, default=0), "out_of_order": order, "corrupt": corrupt,
                      "seconds": end - begin}), flush=True)


def compute() -> None:
    """Burn a core until killed, with the memory traffic of a small matrix product."""
    import numpy as np

    matrix = np.random.default_rng(0).random((256, 256), dtype=np.float32)
    while True:
        matrix = matrix @ matrix
        matrix /= np.abs(matrix).max()


PROGRAMS: dict[str, Callable[..., None]] = {
    "tcp-receive": tcp_receive, "tcp-send": tcp_send, "ping": ping, "udp-send": udp_send, "udp-receive": udp_receive,
    "compute": compute,
}


# --- the measurements
# -------------------------------------------------------------------------------------------------


def launch(tunnel: Tunnel, region: str, node: int, *arguments: object, measuring: bool = True) -> subprocess.Popen[Any]:
    command = [sys.executable, __file__, "--program", *map(str, arguments)]
    environment = dict(os.environ) | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return tunnel.start(region, node, command, env=environment, stdout=subprocess.PIPE, measuring=measuring)


def line_of(process: subprocess.Popen[Any]) -> Any:
    raw = process.stdout.readline().decode().strip()  # type: ignore[union-attr]
    return json.loads(raw) if raw and raw not in ("ready", "sent") else raw


def stop(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


def measure_rate(tunnel: Tunnel, window_bytes: int, skip_s: float, measure_s: float) -> float:
    streams = 4
    receiver = launch(tunnel, "b", 0, "tcp-receive", streams, skip_s, measure_s)
    line_of(receiver)
    sender = launch(tunnel, "a", 0, "tcp-send", tunnel.address("b", 0), streams, window_bytes)
    rate = float(line_of(receiver))
    stop(sender)
    stop(receiver)
    return rate


def measure_rtts(tunnel: Tunnel, count: int, interval_s: float = 0.02) -> list[float]:
    pinger = launch(tunnel, "a", 0, "ping", tunnel.address("b", 0), count, interval_s)
    found = line_of(pinger)
    pinger.wait()
    return found


def measure_packets(tunnel: Tunnel, packets: int, rate_bytes_per_s: float) -> dict[str, float]:
    receiver = launch(tunnel, "b", 0, "udp-receive", packets)
    line_of(receiver)
    sender = launch(tunnel, "a", 0, "udp-send", tunnel.address("b", 0), packets, rate_bytes_per_s)
    found = line_of(receiver)
    receiver.wait()
    sender.wait()
    return found


def settle(tunnel: Tunnel) -> None:
    """Let what is on the line drain, so that one measurement does not reach into the next."""
    time.sleep(0.3)


def grid(tunnel: Tunnel, load: str, rates: list[float], rtts: list[float]) -> list[Row]:
    rows: list[Row] = []
    for rtt_s in rtts:
        for rate in rates:
            product = rate * rtt_s
            queue = product + 400_000
            tunnel.set_link("a", "b", rate_bytes_per_s=rate, rtt_s=rtt_s, queue_bytes=queue, jitter_s=0.0, loss=0.0)
            name = f"{rate * 8e-6:.0f} Mb/s, {rtt_s * 1e3:.0f} ms"
            trips = sorted(measure_rtts(tunnel, 80))
            median = statistics.median(trips)
            p99 = trips[int(len(trips) * 0.99) - 1]
            rows.append(Row(what=f"RTT (ms)       {name}", load=load, asked=rtt_s * 1e3, measured=median * 1e3,
                            error=(median - rtt_s) * 1e3, bound=1.0, note=f"p99 {p99 * 1e3:.2f} ms"))
            before = tunnel.line()
            began = time.monotonic()
            got = measure_rate(tunnel, round(1.25 * product) + 200_000, 1.0 + 15 * rtt_s, 2.5)
            share = (tunnel.line().cpu_s - before.cpu_s) / (time.monotonic() - began)
            limit = rate * 1448 / 1500
            rows.append(Row(what=f"goodput (Mb/s) {name}", load=load, asked=limit * 8e-6, measured=got * 8e-6,
                            error=got / limit - 1, bound=0.05, note=f"ratio {got / limit:.4f}, line {share:.0%} of a core"))
            settle(tunnel)
    return rows


def losses(tunnel: Tunnel, load: str, packets: int, chances: list[float]) -> list[Row]:
    rows: list[Row] = []
    rate = 125e6
    for chance in chances:
        tunnel.set_link("a", "b", rate_bytes_per_s=rate, rtt_s=0.018, queue_bytes=8e6, loss=chance, jitter_s=0.0)
        refused = tunnel.counters()["a", "b"].dropped_queue
        found = measure_packets(tunnel, packets, rate * 0.8)
        refused = tunnel.counters()["a", "b"].dropped_queue - refused
        line = tunnel.line()
        got = found["missing"] / packets
        note = (f"{packets} packets, {found['missing']} lost in {found['runs']} runs, longest {found['longest']}, "
                f"queue drops {refused}, port drops {line.port_drops}, corrupt {found['corrupt']}")
        rows.append(Row(what=f"loss {chance}", load=load, asked=chance, measured=got, error=got / chance - 1,
                        bound=0.1, note=note))
        # Independent drops with chance p come in runs of 1 / (1 - p) on average; bursts of super-packets in
        # runs of tens.
        mean = found["missing"] / max(found["runs"], 1)
        rows.append(Row(what=f"loss {chance}, mean run", load=load, asked=1 / (1 - chance), measured=mean,
                        error=mean * (1 - chance) - 1, bound=0.05))
    return rows


def jitter(tunnel: Tunnel, load: str, count: int) -> list[Row]:
    rtt_s, peak_s = 0.018, 0.002
    tunnel.set_link("a", "b", rate_bytes_per_s=125e6, rtt_s=rtt_s, queue_bytes=8e6, loss=0.0, jitter_s=peak_s)
    trips = measure_rtts(tunnel, count, 0.01)
    found = measure_packets(tunnel, 100_000, 60e6)
    middle = statistics.fmean(trips)
    p1, p99 = (statistics.quantiles(trips, n=100)[k] for k in (0, 98))
    beyond = max(p99 - rtt_s - 2 * peak_s, rtt_s - 2 * peak_s - p1, 0.0)
    deviation = statistics.pstdev(trips)
    # A way's delay is linear between uniform knots: variance j^2/3 x 2/3; two independent ways.
    expected = 2 / 3 * peak_s
    return [
        Row(what="jitter 2 ms a way: mean RTT (ms)", load=load, asked=18, measured=middle * 1e3,
            error=(middle - rtt_s) * 1e3, bound=1.0),
        Row(what="  p1..p99 beyond +-4 ms (ms)", load=load, asked=0, measured=beyond * 1e3, error=beyond * 1e3, bound=1.0,
            note=f"p1 {p1 * 1e3:.2f}, p99 {p99 * 1e3:.2f} ms"),
        Row(what="  standard deviation (ms)", load=load, asked=expected * 1e3, measured=deviation * 1e3,
            error=deviation / expected - 1, bound=0.35),
        Row(what="  packets out of order", load=load, asked=0, measured=found["out_of_order"],
            error=found["out_of_order"], bound=0,
            note=f"of {found['arrived']}"),
    ]


def queue(tunnel: Tunnel, load: str) -> list[Row]:
    """120% of the rate into a queue of 20 ms: pings wait 20 ms and no more, and exactly the rate comes out."""
    rate, rtt_s, limit = 12.5e6, 0.018, 250_000
    tunnel.set_link("a", "b", rate_bytes_per_s=rate, rtt_s=rtt_s, queue_bytes=limit, jitter_s=0.0, loss=0.0)
    packets = 40_000
    receiver = launch(tunnel, "b", 0, "udp-receive", packets)
    line_of(receiver)
    sender = launch(tunnel, "a", 0, "udp-send", tunnel.address("b", 0), packets, rate * 1.2)
    time.sleep(1.0)
    trips = measure_rtts(tunnel, 80)
    found = line_of(receiver)
    stop(receiver)
    stop(sender)
    median, worst = statistics.median(trips), max(trips)
    expected = rtt_s + limit / rate
    got = found["arrived"] * PACKET / found["seconds"]
    most = tunnel.counters()["a", "b"].queue_bytes_max
    return [
        Row(what="queue of 20 ms, full: median RTT (ms)", load=load, asked=expected * 1e3, measured=median * 1e3,
            error=(median - expected) * 1e3, bound=1.5, note=f"worst {worst * 1e3:.2f} ms; one packet is 0.12 ms"),
        Row(what="  UDP rate out at 120% in (Mb/s)", load=load, asked=100, measured=got * 8e-6, error=got / rate - 1, bound=0.05,
            note=f"{found['missing']} of {packets} dropped; most ever queued {most:.0f} bytes"),
    ]


def measure(load: str, quick: bool, congestion: str | None) -> tuple[list[Row], str]:
    began = time.monotonic()
    link = EmulatedLink(between=("a", "b"), rate_bytes_per_s=12.5e6, rtt_s=0.018)
    with open_tunnel({"a": 2, "b": 2}, [link], TcpSettings(congestion=congestion)) as tunnel:
        opened = time.monotonic() - began
        ranks = [
            launch(tunnel, region, node, "compute", measuring=False)
            for region in ("a", "b") for node in (0, 1) if load == "busy"
        ]
        if ranks:
            time.sleep(1.5)
        if quick:
            rows = grid(tunnel, load, [6.25e6, 125e6], [0.0, 0.06]) + losses(tunnel, load, 200_000, [0.01])
        else:
            rows = grid(tunnel, load, [6.25e6, 12.5e6, 62.5e6, 125e6], [0.0, 0.01, 0.018, 0.06])
            rows += losses(tunnel, load, 1_000_000, [0.001, 0.01])
        rows += jitter(tunnel, load, 200 if quick else 600) + queue(tunnel, load)
        late = max(each.late_p99_s for each in tunnel.counters().values())
        line = tunnel.line()
        said = (f"{load}: set-up {opened:.2f} s, {tunnel.congestion}, delay line {'SCHED_FIFO' if tunnel.fifo else 'normal'}, "
                f"{'user namespace' if tunnel.rootless else 'root'}, late p99 {late * 1e3:.2f} ms, "
                f"port drops {line.port_drops}, write errors {line.write_errors}")
        for rank in ranks:
            stop(rank)
    return rows, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--load", choices=["idle", "busy", "both"], default="both")
    parser.add_argument("--quick", action="store_true", help="fewer cells and packets")
    parser.add_argument("--congestion", help="default: cubic where the kernel has it, which fills a link most evenly")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    congestion = arguments.congestion or ("cubic" if "cubic" in known else None)
    rows: list[Row] = []
    for load in ("idle", "busy") if arguments.load == "both" else (arguments.load,):
        found, said = measure(load, arguments.quick, congestion)
        rows += found
        print(said, file=sys.stderr)
        for row in found:
            mark = "ok  " if row.good else "MISS"
            print(f"{mark} {row.load:4} {row.what:40} asked {row.asked:9.4g}  measured {row.measured:9.4g}  "
                  f"error {row.error:+8.4f} (bound {row.bound:g})  {row.note}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) | {"good": row.good} for row in rows], indent=1), encoding="utf-8")
    missed = sum(not row.good for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} within bounds", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        PROGRAMS[sys.argv[2]](*(json.loads(text) if text[0].isdigit() and text.count(".") < 2 else text for text in sys.argv[3:]))
    else:
        sys.exit(main())
