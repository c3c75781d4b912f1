"""The tunnel as its users see it. What needs namespaces carries the mark `tunnel`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.emulate import EmulatedLink, TcpSettings, Tunnel, open_tunnel
from isthmus.emulate.topology import next_hops
from isthmus.errors import InputError

LINK = EmulatedLink(between=("west", "east"), rate_bytes_per_s=12.5e6, rtt_s=0.018)


def edited(**change: object) -> EmulatedLink:
    return replace(LINK, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "links", "text"),
    [
        ({}, [], "wind tunnel: 0 regions, expected 1 to 64"),
        ({"west": 0, "east": 1}, [], "wind tunnel: west has 0 nodes, expected 1 to 200"),
        ({"west": 1, "easst": 1}, [LINK], "wind tunnel: the link west-east ends in 'east', which is no region\n"
                                         "  hint: did you mean 'easst'?"),
        ({"west": 1, "east": 1}, [LINK, edited(between=("east", "west"))],
         "wind tunnel: two links join east and west\n  hint: merge them into one"),
        ({"west": 1}, [edited(between=("west", "west"))], "wind tunnel: the link west-west joins a region to itself"),
        ({"west": 1, "east": 1}, [edited(rate_bytes_per_s=0.0)],
         "wind tunnel: the link west-east has the rate 0.0 bytes/s, expected more than 0, or None for no limit"),
        ({"west": 1, "east": 1}, [edited(rtt_s=-0.1)], "wind tunnel: the link west-east has the RTT -0.1 s, expected 0 to 60"),
        ({"west": 1, "east": 1}, [edited(rtt_s=float("nan"))],
         "wind tunnel: the link west-east has the RTT nan s, expected 0 to 60"),
        ({"west": 1, "east": 1}, [edited(jitter_s=0.010)],
         "wind tunnel: the link west-east has the jitter 0.01 s, expected 0 to half its RTT"),
        ({"west": 1, "east": 1}, [edited(loss=1.5)], "wind tunnel: the link west-east has the loss 1.5, expected 0 to 1"),
        ({"west": 1, "east": 1}, [edited(queue_bytes=100)],
         "wind tunnel: the link west-east has a queue of 100 bytes, expected one packet of 1500 at least"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(nodes: dict[str, int], links: list[EmulatedLink], text: str) -> None:
    with pytest.raises(InputError) as refused, open_tunnel(nodes, links):
        pass
    assert str(refused.value) == text


@given(
    regions=st.integers(2, 7),
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_next_hops_follow_a_shortest_way_and_reach_all_that_can_be_reached(
    regions: int, edges: list[tuple[int, int, int]]
) -> None:
    rtt = {}
    for a, b, weight in edges:
        if a != b and a < regions and b < regions:
            rtt[a, b] = rtt[b, a] = float(weight)
    table = next_hops(regions, rtt)
    # Second witness: Floyd and Warshall.
    far = [[0.0 if i == j else rtt.get((i, j), float("inf")) for j in range(regions)] for i in range(regions)]
    for k in range(regions):
        for i in range(regions):
            for j in range(regions):
                far[i][j] = min(far[i][j], far[i][k] + far[k][j])
    for i in range(regions):
        for j in range(regions):
            here, walked = i, 0.0
            while here != j and table[here][j] is not None:
                there = table[here][j]
                assert there is not None
                walked += rtt[here, there]
                here = there
                assert walked <= far[i][j] + 1e-9
            assert (here == j) == (far[i][j] < float("inf"))
            assert i == j or here != j or walked == pytest.approx(far[i][j])


# --- with namespaces
# --------------------------------------------------------------------------------------------------

SERVE = """
import hashlib, socket
listener = socket.create_server(("0.0.0.0", 5000)); print("ready", flush=True)
connection, _ = listener.accept(); found = hashlib.sha256(); size = 0
while part := connection.recv(1 << 20):
    found.update(part); size += len(part)
connection.sendall(found.digest()); print(size, flush=True)
"""
SEND = """
import hashlib, json, random, socket, sys, time
data = random.Random(7).randbytes(int(sys.argv[2])); begin = time.monotonic()
with socket.create_connection((sys.argv[1], 5000)) as connection:
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\\0")[0].decode()
    connection.sendall(data); connection.shutdown(socket.SHUT_WR)
    same = connection.recv(64) == hashlib.sha256(data).digest()
print(json.dumps({"same": same, "seconds": time.monotonic() - begin, "congestion": name}))
"""
PING = """
import json, socket, struct, sys, time
icmp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); icmp.settimeout(0.3); found = []
for number in range(int(sys.argv[2])):
    begin = time.monotonic(); icmp.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, number) + bytes(48), (sys.argv[1], 0))
    try:
        while struct.unpack_from("!H", icmp.recv(2048), 6)[0] != number: pass
        found.append(time.monotonic() - begin)
    except TimeoutError:
        found.append(None)
    time.sleep(0.01)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tunnel() -> Iterator[Tunnel]:
    links = [LINK, EmulatedLink(between=("east", "north"), rate_bytes_per_s=125e6, rtt_s=0.006)]
    with open_tunnel({"west": 2, "east": 2, "north": 1}, links, TcpSettings(slow_start_after_idle=False)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def restored(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "tunnel" in request.fixturenames:
        request.getfixturevalue("tunnel").set_link(
            "west", "east", rate_bytes_per_s=12.5e6, rtt_s=0.018, loss=0.0, jitter_s=0.0, queue_bytes=None, up=True
        )


def run(tunnel: Tunnel, region: str, program: str, *arguments: object) -> object:
    process = tunnel.start(
        region, 0, [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, measuring=True
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def transfer(tunnel: Tunnel, src: str, dst: str, size: int) -> dict[str, object]:
    server = tunnel.start(dst, 0, [sys.executable, "-c", SERVE], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    found = run(tunnel, src, SEND, tunnel.address(dst, 0), size)
    assert int(server.communicate(timeout=60)[0]) == size
    assert isinstance(found, dict)
    return found


def median_rtt_s(tunnel: Tunnel, src: str, dst: str) -> float:
    found = run(tunnel, src, PING, tunnel.address(dst, 0), 40)
    assert isinstance(found, list)
    return sorted(found[3:])[18]


@pytest.mark.tunnel
def test_bytes_cross_unharmed_and_are_counted_as_ip_bytes(tunnel: Tunnel) -> None:
    before = tunnel.counters()["west", "east"]
    found = transfer(tunnel, "west", "east", 4_000_000)
    after = tunnel.counters()["west", "east"]
    assert found["same"]
    assert found["congestion"] == tunnel.congestion
    sent = after.wire_bytes - before.wire_bytes
    # 1,448 of every 1,500 bytes are payload; handshake, and what a full queue made TCP send again, come on
    # top.
    again = (after.dropped_queue - before.dropped_queue) * 1500
    assert 4_000_000 * 1500 / 1448 <= sent <= 4_000_000 * 1500 / 1448 * 1.02 + again + 150_000


@pytest.mark.tunnel
def test_segments_lost_out_of_super_packets_leave_valid_ones(tunnel: Tunnel) -> None:
    tunnel.set_link("west", "east", loss=0.02, rate_bytes_per_s=125e6, rtt_s=0.002)
    before = tunnel.counters()["west", "east"].dropped_loss
    found = transfer(tunnel, "west", "east", 20_000_000)
    assert found["same"]
    assert tunnel.counters()["west", "east"].dropped_loss - before > 100
    snmp = run(tunnel, "east", """
import json
lines = [line.split() for line in open("/proc/net/snmp")]
found = {}
for names, values in zip(lines[::2], lines[1::2]):
    found |= {names[0] + name: int(value) for name, value in zip(names[1:], values[1:])}
print(json.dumps(found))""")
    assert isinstance(snmp, dict)
    assert (snmp["Tcp:InCsumErrors"], snmp["Ip:InHdrErrors"], snmp["Tcp:InErrs"]) == (0, 0, 0)


@pytest.mark.tunnel
def test_regions_without_a_link_of_their_own_reach_each_other_over_the_others(tunnel: Tunnel) -> None:
    assert median_rtt_s(tunnel, "west", "north") == pytest.approx(0.018 + 0.006, abs=0.0025)
    assert transfer(tunnel, "west", "north", 300_000)["same"]


@pytest.mark.tunnel
def test_a_link_can_be_changed_cut_and_healed_while_it_runs(tunnel: Tunnel) -> None:
    assert median_rtt_s(tunnel, "west", "east") == pytest.approx(0.018, abs=0.002)
    tunnel.set_link("west", "east", both=False, rtt_s=0.060)  # 30 ms there, 9 ms back
    assert median_rtt_s(tunnel, "west", "east") == pytest.approx(0.039, abs=0.002)
    tunnel.set_link("west", "east", up=False)
    lost = tunnel.counters()["west", "east"].dropped_down
    assert run(tunnel, "west", PING, tunnel.address("east", 0), 3) == [None] * 3
    assert tunnel.counters()["west", "east"].dropped_down - lost == 3
    tunnel.set_link("west", "east", up=True, rtt_s=0.018)
    assert median_rtt_s(tunnel, "west", "east") == pytest.approx(0.018, abs=0.002)
    with pytest.raises(InputError, match="no link joins 'west' and 'north'\n  hint: links: east-north, west-east"):
        tunnel.set_link("west", "north", up=False)


@pytest.mark.tunnel
def test_ranks_run_below_the_delay_line_in_their_own_node_with_the_tcp_asked_for(tunnel: Tunnel) -> None:
    found = run(tunnel, "north", """
import json, os
read = lambda name: open("/proc/sys/net/ipv4/" + name).read().split()
print(json.dumps({"devices": sorted(os.listdir("/proc/sys/net/ipv4/conf")),
                  "rmem": read("tcp_rmem")[2], "wmem": read("tcp_wmem")[2],
                  "idle": read("tcp_slow_start_after_idle"), "token": "ISTHMUS_TUNNEL" in os.environ}))""")
    assert found == {"devices": ["all", "default", "eth0", "lo"], "rmem": str(64 << 20), "wmem": str(64 << 20),
                     "idle": ["0"], "token": True}
    rank = tunnel.start("north", 0, [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], stdout=subprocess.PIPE)
    policy = int(rank.communicate()[0])
    assert policy == (os.SCHED_OTHER if tunnel.fifo else os.SCHED_IDLE)
    with pytest.raises(InputError, match=r"north has no node 1\n  hint: its nodes are 0 to 0"):
        tunnel.address("north", 1)


@pytest.mark.tunnel
def test_a_program_that_cannot_be_run_says_so(tunnel: Tunnel) -> None:
    process = tunnel.start("west", 1, ["/no/such/program"], stderr=subprocess.PIPE)
    assert process.communicate()[1] == b"isthmus: cannot start /no/such/program in its node: No such file or directory\n"
    assert process.returncode == 127


@pytest.mark.tunnel
def test_an_unknown_congestion_control_is_refused_and_a_known_one_is_used() -> None:
    with pytest.raises(InputError, match="this kernel has no TCP congestion control 'carrier-pigeon'"), \
            open_tunnel({"a": 1}, [], TcpSettings(congestion="carrier-pigeon")):
        pass
    with open_tunnel({"a": 1}, [], TcpSettings(congestion="reno")) as opened:
        assert opened.congestion == "reno"


@pytest.mark.tunnel
def test_a_delay_line_that_dies_is_an_error_with_its_status_and_takes_nobody_along() -> None:
    with open_tunnel({"a": 1, "b": 1}, [edited(between=("a", "b"))]) as opened:
        rank = opened.start("a", 0, ["sleep", "60"])
        os.kill(opened.line_pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"the delay line ended by itself \(exit status -9\)"):
            opened.counters()
        assert rank.poll() is None


UNPRIVILEGED = """
import json, os, subprocess, sys, time
from isthmus.emulate import *
probe()
with open_tunnel({"a": 2, "b": 2}, [EmulatedLink(between=("a", "b"), rate_bytes_per_s=12.5e6, rtt_s=0.018)]) as tunnel:
    def run(region, node, program, *arguments, measuring=False):
        command = [sys.executable, "-c", program, *arguments]
        return tunnel.start(region, node, command, stdout=subprocess.PIPE, measuring=measuring)
    status = "open('/proc/self/status').read().split('CapEff:')[1].split()[0]"
    show = f"import os; print(os.getuid(), os.sched_getscheduler(0), {status})"
    who = run("a", 1, show).communicate()[0].decode().split()
    trips = json.loads(run("a", 0, sys.argv[1], tunnel.address("b", 1), "40", measuring=True).communicate()[0])
    run("b", 0, sys.argv[2]).stdout.readline()
    sent = json.loads(run("a", 0, sys.argv[3], tunnel.address("b", 0), "3000000").communicate()[0])
    print(json.dumps({"who": who, "rootless": tunnel.rootless, "fifo": tunnel.fifo, "rtt": sorted(trips[3:])[18],
                      "same": sent["same"], "congestion": [sent["congestion"], tunnel.congestion]}))
"""


@pytest.mark.tunnel
def test_the_same_works_as_an_unprivileged_user(anyones_python: str, anyones_path: str) -> None:
    as_nobody: dict[str, object] = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    done = subprocess.run(  # type: ignore[call-overload]
        [anyones_python, "-c", UNPRIVILEGED, PING, SERVE, SEND], capture_output=True, text=True, check=False, cwd="/",
        env={"PYTHONPATH": anyones_path, "PATH": os.environ["PATH"]}, **as_nobody,
    )
    if "seccomp" in done.stderr or "sysctl" in done.stderr:
        pytest.skip(f"this machine refuses user namespaces: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    uid = 65534 if os.getuid() == 0 else os.getuid()
    assert found["who"] == [str(uid), str(os.SCHED_IDLE), "0" * 16]
    assert (found["rootless"], found["fifo"], found["same"]) == (True, False, True)
    assert found["congestion"][0] == found["congestion"][1]
    assert found["rtt"] == pytest.approx(0.018, abs=0.003)
