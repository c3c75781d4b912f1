"""The file for NCCL's example tuner, read back as the plugin reads it: comma by comma, lines with # passed over."""

from pathlib import Path

import pytest

from isthmus.cli.simulated_tuner import tuner_rows, write_tuner
from isthmus.cost.collectives_group import region_group
from isthmus.cost.collectives_time import collective_time
from isthmus.fabric import read_fabric

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_size_has_one_rule_which_is_what_the_model_chooses(path: Path, tmp_path: Path) -> None:
    fabric = read_fabric(path)
    assert write_tuner(fabric, tmp_path / "tuner.csv") == len(tuner_rows(fabric))
    lines = [line.split(",") for line in (tmp_path / "tuner.csv").read_text().splitlines() if not line.startswith("#")]
    region = fabric.regions[0]
    mine = [line for line in lines if line[0] == "allreduce" and line[6:8] == [str(region.nodes), str(region.gpus)]]
    assert [int(line[1]) for line in mine] == [0, *(int(line[2]) + 1 for line in mine[:-1])]
    assert all(len(line) == 10 and line[5] == line[8] == line[9] == "-1" for line in lines)
    for size in (2e3, 3e5, 1e9):
        [rule] = [line for line in mine if int(line[1]) <= size <= int(line[2])]
        best = collective_time("all-reduce", size, region_group(fabric, region.name))
        assert (rule[3], rule[4]) == (best.algorithm.replace("-", "_"), best.protocol)
