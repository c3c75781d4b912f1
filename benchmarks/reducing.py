"""The ranks of the all-reduce benchmark: processes that obey commands on stdin, and the handle on all of them."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nets import BareTcp, LoopbackNet, TunnelNet


class Ranks:
    """The processes of all regions; every command goes to all, with a common start time, and returns the last one's end.

    Each rank opens one rail in the clear and, with `tls`, one inside TLS, on the next port.
    """

    def __init__(
        self, net: "TunnelNet | LoopbackNet", streams: int, rate: "float | dict[str, dict[str, float]] | None", *, tls: bool,
        shares: tuple[float, ...] | None = None,
    ) -> None:
        """`rate` is a rail's share of its link, the same everywhere or by region and other region."""
        from isthmus.keys import make_keys

        regions, folder = net.regions, net.folder
        make_keys(list(regions), folder / "keys")
        for name, shift in (("plain", 0), ("tls", 1), ("bare", 2)):
            listed = [
                {"name": region, "rails": [net.rail(region, node, shift) for node in range(count)]}
                for region, count in regions.items()
            ]
            (folder / f"{name}.json").write_text(json.dumps({"regions": listed, "flat_master": net.master}))
        options = {"streams": streams, "folder": str(folder), "tls": tls, "shares": shares}
        self.cpu_s = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []
        for region, count in regions.items():
            for node in range(count):
                environment = {
                    "PATH": "/usr/bin:/bin", "GLOO_SOCKET_IFNAME": net.interface, "RANK": str(node), "WORLD_SIZE": str(count),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ISTHMUS_REGION": region,
                    "ISTHMUS_MEMBERS": str(folder / "plain.json"), "ISTHMUS_INSECURE": "1", "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
                }
                given = json.dumps(options | {"rate": rate[region] if isinstance(rate, dict) else rate})
                self._processes.append(net.start(region, node, [sys.executable, __file__, given], environment))
        self._answers()

    def stop(self) -> None:
        """Let the ranks end."""
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait(30)

    def ask(self, **command: Any) -> tuple[float, list[Any]]:
        """Seconds from the common start to the last end, and what every rank found; `cpu_s` is what all of them spent."""
        start_s = time.monotonic() + 0.1
        for process in self._processes:
            process.stdin.write(json.dumps(command | {"at": start_s}).encode() + b"\n")
            process.stdin.flush()
        answers = self._answers()
        self.cpu_s = sum(answer["cpu_s"] for answer in answers)
        return max(answer["end"] for answer in answers) - start_s, [answer["found"] for answer in answers]

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for number, process in enumerate(self._processes):
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"rank {number} ended with status {process.wait()}")
            answers.append(json.loads(line))
        return answers


def run_rank(options: dict[str, Any]) -> None:
    """One rank: obey the commands on stdin."""
    rank = Rank(options)
    print(json.dumps({"end": 0.0, "found": None}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        rank.take(command.get("size_bytes", 4))
        time.sleep(max(0.0, command["at"] - time.monotonic()))
        cpu_s = time.process_time()
        found = rank.obey(command["do"], command.get("codec", "none"))
        answer = {"end": time.monotonic(), "found": found, "cpu_s": time.process_time() - cpu_s}
        print(json.dumps(answer), flush=True)
    for rail in rank.rails.values():
        rail.close()


class Rank:
    """A rank's groups, its rails, and the tensor that is being reduced."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, ReducerOptions
        from isthmus.runtime.environment import read_environment, read_members, split_address
        from isthmus.runtime.wan.identity import Identity
        from isthmus.runtime.wan.rail import Rail, RailOptions

        torch.set_num_threads(1)
        place, folder = read_environment(), Path(options["folder"])
        assert place.members is not None
        assert place.members.flat_master is not None
        host, port = split_address(place.members.flat_master)
        self.ranks, self.number = place.global_size, place.global_rank
        dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=self.number, world_size=self.ranks)
        group, first = None, 0
        for region in place.members.regions:
            made = dist.new_group(list(range(first, first + region.ranks))) if region.ranks > 1 else None
            group = made if region.name == place.region else group
            first += region.ranks
        self.rails, self.reducers = {}, {}
        for way in ("plain", "tls") if options["tls"] else ("plain",):
            rail_options = RailOptions(
                congestion="", rate_bytes_per_s=options["rate"], insecure=True, early_bytes_max=1 << 28,
                identity=Identity.load(folder / "keys", place.region) if way == "tls" else None,
            )
            members = read_members(folder / f"{way}.json")
            rail = Rail.open(members, place.region_index, place.rank, options["streams"], 60.0, rail_options)
            self.rails[way] = rail
            for codec in ("none", "int8", "int4") if way == "plain" else ("none",):
                self.reducers[way, codec] = HierarchicalReducer(group, rail, codec)
            if options["shares"]:
                reducing = ReducerOptions(shares=tuple(options["shares"]))
                self.reducers["shares", "none"] = HierarchicalReducer(group, rail, "none", reducing)
        self.bare = None
        if len(place.members.regions) == 2:
            self.bare = BareTcp.between(read_members(folder / "bare.json"), place, options["streams"], options["rate"])
        self.tensor = self.kept = torch.empty(0)

    def take(self, size_bytes: int) -> None:
        """Have a tensor of that size, with values of this rank's own when it is a new one."""
        import torch

        if self.tensor.nbytes != size_bytes and size_bytes > 4:
            self.tensor = torch.empty(size_bytes // 4)
            self.obey("refill", "none")

    def obey(self, do: str, codec: str) -> Any:
        """Carry out one command; what it found, if anything."""
        import torch
        import torch.distributed as dist

        from isthmus.runtime.hashing import fingerprint

        match do:
            case "hierarchical" | "shares" | "tls":
                self.reducers[{"hierarchical": "plain"}.get(do, do), codec].all_reduce_(self.tensor, 1)
            case "flat":
                dist.all_reduce(self.tensor)
                self.tensor.mul_(1 / self.ranks)
            case "bare":
                self.bare.swap(self.tensor.nbytes // (self.ranks // 2))
            case "refill":
                self.tensor.normal_(generator=torch.Generator().manual_seed(self.number))
            case "keep":
                self.kept = self.tensor.clone()
            case "difference":
                return float((self.tensor - self.kept).abs().max())
            case "hash":
                return f"{fingerprint([self.tensor]):016x}"
            case "links":
                return {name: asdict(use) for name, use in self.rails["plain"].counters().items()}
        return None


if __name__ == "__main__":
    run_rank(json.loads(sys.argv[1]))
