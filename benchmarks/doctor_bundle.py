"""A bundle of many nodes, made of real shapes, with ten broken nodes hidden in it: are exactly these named, and how fast?

python benchmarks/doctor_bundle.py [--nodes 1000] [--keep bundle.tar.gz]
"""

import argparse
import io
import random
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from isthmus.doctor.judge import diagnose
from isthmus.doctor.sources import documents

GPUS = 8
MODEL = "NVIDIA H100 80GB HBM3"


def smi_q(
    gpu: int,
    *,
    width: str = "16x",
    brake: str = "Not Active",
    pending: str = "No",
    wrong: int = 0,
    limit: str = "700.00",
) -> str:
    body = f"""GPU 00000000:{0x18 + gpu * 16:02X}:00.0
    Product Name                          : {MODEL}
    Product Brand                         : NVIDIA
    Product Architecture                  : Hopper
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    VBIOS Version                         : 96.00.89.00.01
    PCI
        Bus                               : 0x{0x18 + gpu * 16:02X}
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
                Device Current            : 5
                Device Max                : 5
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : {width}
        Replays Since Reset               : 0
    Fan Speed                             : N/A
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : {brake}
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : {brake}
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 71002 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {wrong}
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {wrong}
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : {pending}
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 54 C
        GPU T.Limit Temp                  : 32 C
        GPU Slowdown T.Limit Temp         : -2 C
    GPU Power Readings
        Power Draw                        : 612.40 W
        Current Power Limit               : {limit} W
    Clocks
        Graphics                          : 1905 MHz
        SM                                : 1905 MHz
        Memory                            : 2619 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
        Memory                            : 2619 MHz
    Fabric
        State                             : Completed
        Status                            : Success
"""
    more = "".join(
        (
            f"    Processes {n}\n        Process ID                        : {4000 + n}\n            Used GPU "
            f"Memory               : 812 MiB\n"
        )
        for n in range(40)
    )
    return body + more


def topo(weak: tuple[int, int] | None = None) -> str:
    names = [f"GPU{g}" for g in range(GPUS)] + [f"NIC{n}" for n in range(GPUS)]
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for g in range(GPUS):
        cells = [" X " if g == k else "NV14" if weak in {(g, k), (k, g)} else "NV18" for k in range(GPUS)]
        near = ["PIX" if g == n else "NODE" if g // 4 == n // 4 else "SYS" for n in range(GPUS)]
        rows.append("\t".join([f"GPU{g}", *cells, *near, "0-55,112-167" if g < 4 else "56-111,168-223", str(g // 4), "", "N/A"]))
    return "\n".join(rows) + "\n"


def ibstat(down: int | None = None, slow: int | None = None) -> str:
    def card(n: int) -> str:
        state, physical, rate = ("Down", "Polling", 10) if n == down else ("Active", "LinkUp", 200 if n == slow else 400)
        return (
            f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n\tHardware "
            f"version: 0\n\tNode GUID: 0x{n:016x}\n"
            f"\tSystem image GUID: 0x{n:016x}\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: "
            f"{physical}\n\t\tRate: {rate}\n\t\tBase lid: {900 + n}\n"
            "\t\tLMC: 0\n\t\tSM lid: 1\n\t\tCapability mask: 0xa751e848\n\t\tLink layer: InfiniBand\n"
        )

    return "".join(card(n) for n in range(GPUS))


def dmesg(extra: str = "") -> str:
    noise = "".join(f"[{10 + n / 10:.6f}] systemd[1]: Started Session {n} of User train.\n" for n in range(400))
    return noise + extra


def nccl_log(node: str, socket: bool = False) -> str:
    lines = []
    for rank in range(GPUS):
        head = f"{node}:{7000 + rank}:{7100 + rank} [{rank}] NCCL INFO "
        used = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(GPUS))
        lines += [f"{head}Bootstrap : Using bond0:10.4.0.1<0>", f"{head}NET/IB : Using {used} [RO]; OOB bond0:10.4.0.1<0>"]
        lines.append(f"{head}comm 0x7f rank {rank} nRanks 8000 nNodes 1000 localRanks 8 localRank {rank} MNNVL 0")
        lines += [
            f"{head}Channel {c:02d}/0 : {rank}[{rank}] -> {rank + 8}[{rank}] [send] via NET/IB/{rank}/GDRDMA" for c in range(16)
        ]
        if socket:
            lines.append(f"{head}NET/IB : GPU Direct RDMA Disabled for HCA {rank} 'mlx5_{rank}'")
    return "\n".join(lines) + "\n"


def node_files(node: str, fault: str) -> dict[str, str]:
    """The outputs of one node; `fault` names what is wrong with it, or is empty."""
    wrong: dict[str, dict[str, object]] = {
        "narrow": {"width": "8x"},
        "brake": {"brake": "Active"},
        "remap": {"pending": "Yes"},
        "ecc": {"wrong": 2},
        "limit": {"limit": "500.00"},
    }
    head = (
        f"==============NVSMI LOG==============\n\nDriver Version                            : "
        f"{'535.183.01' if fault == 'driver' else '550.90.07'}\n"
    )
    head += "CUDA Version                              : 12.4\n\nAttached GPUs                             : 8\n"
    gpus = "".join(smi_q(g, **(wrong.get(fault, {}) if g == 5 else {})) for g in range(GPUS))  # type: ignore[arg-type]
    xid = (
        "[99000.250000] NVRM: Xid (PCI:0000:58:00): 79, pid=77, name=python, GPU has fallen off the bus.\n"
        if fault == "xid"
        else ""
    )
    return {
        "nvidia-smi-q.txt": head + gpus,
        "nvidia-smi-topo.txt": topo((2, 6) if fault == "nvlink" else None),
        "ibstat.txt": ibstat(down=3 if fault == "port" else None, slow=6 if fault == "rate" else None),
        "dmesg.txt": dmesg(xid),
        "nccl.log": nccl_log(node, socket=fault == "gdr"),
        "env.txt": "NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=bond0\n",
    }


FAULTS = ("narrow", "brake", "remap", "ecc", "driver", "xid", "nvlink", "port", "rate", "gdr")


def write_bundle(path: Path, nodes: int, seed: int) -> tuple[dict[str, str], int]:
    """(broken node -> its fault, bytes of text)."""
    drawn = random.Random(seed)
    broken = dict(zip((f"node{n:04d}" for n in drawn.sample(range(nodes), len(FAULTS))), FAULTS, strict=True))
    total = 0
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for number in range(nodes):
            node = f"node{number:04d}"
            for name, text in node_files(node, broken.get(node, "")).items():
                data = text.encode()
                total += len(data)
                info = tarfile.TarInfo(f"job/isthmus-{node}/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return broken, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "bundle.tar.gz"
        broken, total = write_bundle(path, arguments.nodes, arguments.seed)
        begin, processor = time.perf_counter(), time.process_time()
        report = diagnose(documents([str(path)], sys.stdin.buffer))
        wall_s, core_s = time.perf_counter() - begin, time.process_time() - processor
    named = {finding.host for finding in report.findings if finding.severity != "INFO"}
    print(
        f"{arguments.nodes} nodes x {GPUS} GPUs, {total / 1e6:.0f} MB of text: {core_s:.1f} s on one core "
        f"({wall_s:.1f} s wall), {total / 1e6 / core_s:.1f} MB/s"
    )
    print(f"broken {len(broken)}, named {len(named & set(broken))} of them and {len(named - set(broken))} others")
    for node, fault in sorted(broken.items()):
        print(
            f"  {node} {fault:<7} "
            f"{', '.join(f'{f.severity} {f.rule}' for f in report.findings if f.host == node and f.severity != 'INFO')}"
        )
    sys.exit(named != set(broken))


if __name__ == "__main__":
    main()
