"""Calibration: constants that made the measurements are found again; what they cannot tell stays; files survive the round."""

from pathlib import Path

import pytest
import yaml

from isthmus.calibrate.calibrate import calibrate
from isthmus.calibrate.describe import described
from isthmus.calibrate.observations import group_of
from isthmus.cost.collectives_calibration import calibration_text, constants_with, default_values, read_calibration
from isthmus.cost.collectives_constants import constants_from, default_constants
from isthmus.cost.collectives_time import collective_time
from isthmus.errors import InputError
from isthmus.fabric import read_fabric
from isthmus.formats.collective_runs import Adapters, Row, Run, Wiring
from isthmus.formats.measurements import runs_in_json_lines, runs_in_text

EXAMPLES = Path(__file__).parents[2] / "examples"
WIRING = Wiring(carrier="nvlink3", rate_bytes_per_s=300e9)
ADAPTERS = Adapters(carrier="efa", count=4, rate_bytes_per_s=12.5e9)
SIZES = [2**power for power in range(16, 33)]


def measured(changed: dict[str, float]) -> Run:
    """What a fabric whose constants are the shipped ones but for `changed` would measure."""
    run = Run(
        name="made", source="made", where="made:1", collective="all-reduce", ranks=32, nodes=4, in_node=WIRING,
        network=ADAPTERS, rows=(),
    )  # fmt: skip
    truth = constants_from({**default_values(), **changed})
    rows = tuple(Row(size, collective_time("all-reduce", size, group_of(run), constants=truth).seconds) for size in SIZES)
    return Run(
        name="made", source="made", where="made:1", collective="all-reduce", ranks=32, nodes=4, in_node=WIRING,
        network=ADAPTERS, rows=rows,
    )  # fmt: skip


def test_a_slower_network_and_slower_hops_are_found_and_the_residuals_vanish() -> None:
    run = measured({"efa.sustained": 0.80, "efa.hop": 6.0})
    found = calibrate([run], default_constants(), default_values())
    after = {each.name: each.after for each in found.moved}
    assert after["efa.sustained"] == pytest.approx(0.80, rel=0.03)
    (residuals,) = found.residuals
    assert residuals.after < 0.03 < residuals.before
    assert abs(residuals.worst) < 0.10


def test_what_the_measurements_cannot_tell_stays_as_shipped() -> None:
    # The adapters bind by a factor of five: nothing is learned of NVLink's bandwidth, nothing at all of other links.
    found = calibrate([measured({"efa.sustained": 0.80})], default_constants(), default_values())
    assert "nvlink3.sustained" in found.stayed
    assert not {each.name for each in found.moved} & {"nvlink4.sustained", "infiniband.sustained"}
    assert "nvlink3.sustained" not in found.calibration.constants


def test_a_calibration_survives_its_file_and_moves_later_predictions(tmp_path: Path) -> None:
    run = measured({"efa.sustained": 0.70})
    found = calibrate([run], default_constants(), default_values())
    path = tmp_path / "calibration.yaml"
    path.write_text(calibration_text(found.calibration))
    group = group_of(run)
    again = collective_time("all-reduce", 2**32, group, constants=read_calibration(path))
    straight = collective_time("all-reduce", 2**32, group, constants=constants_with(found.calibration))
    assert again.seconds == pytest.approx(straight.seconds, rel=1e-3)
    assert again.seconds == pytest.approx(run.rows[-1].seconds, rel=0.03)
    assert again.low_s <= run.rows[-1].seconds <= again.high_s
    assert again.high_s / again.seconds == pytest.approx(1.05, abs=0.01)
    assert collective_time("all-reduce", 2**32, group).seconds < 0.85 * again.seconds


def test_a_constant_that_there_is_not_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "constants": {"nvlink4.sustaned": 0.8}}))
    with pytest.raises(InputError, match=r"calibration.yaml:2: unknown constant 'nvlink4.sustaned'\n.*nvlink4.sustained"):
        read_calibration(path)


LOG = """\
# nThread 1 nGpus 1
#  Rank  0 Group  0 Pid 1 on one device 0 [0x07] NVIDIA H100 80GB HBM3
#  Rank 15 Group  0 Pid 1 on two device 7 [0x07] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1   6000.0  178.96  335.54      0   6000.0  178.96  335.54      0
"""


def test_a_log_takes_its_wiring_from_the_fabric_it_ran_on() -> None:
    (run,) = runs_in_text(LOG, "run.log")
    found = described(run, read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"), "shanghai", None, None)
    # Two nodes of 8 H100 with four ConnectX-7 each.
    assert [(level.carrier, level.members, level.rate_bytes_per_s) for level in group_of(found)] == [
        ("nvlink4", 8, 450e9),
        ("infiniband", 2, 200e9),
    ]


def test_a_run_of_which_nothing_is_known_says_what_to_name() -> None:
    (run,) = runs_in_text(LOG, "run.log")
    with pytest.raises(InputError, match="the wiring of the 16 GPUs of a node is not known"):
        group_of(described(run, None, None, None, None))
    with pytest.raises(InputError, match="16 ranks on 3 nodes do not fit"):
        described(run, read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"), None, 3, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ('{"colective": "all-reduce"}', "unknown key 'colective'"),
        ('{"collective": "allreduce"}', "unknown collective 'allreduce'"),
        ('{"collective": "all-reduce", "ranks": 1, "size_bytes": 8, "seconds": 1}', "ranks is 1"),
        ('{"collective": "all-reduce", "ranks": 8, "size_bytes": 8, "seconds": NaN}', "seconds is nan"),
    ],
)
def test_a_line_of_json_that_is_no_measurement_is_refused_by_line(line: str, message: str) -> None:
    with pytest.raises(InputError, match=f"m.jsonl:1: .*{message}"):
        runs_in_json_lines(line, "m.jsonl")


def test_lines_of_json_of_one_system_are_one_run() -> None:
    lines = "\n".join(
        f'{{"collective": "all-gather", "ranks": {ranks}, "size_bytes": {size}, "seconds": 0.001}}'
        for ranks in (8, 16)
        for size in (2048, 1024)
    )
    runs = runs_in_json_lines(lines, "m.jsonl")
    assert [(run.ranks, [row.size_bytes for row in run.rows]) for run in runs] == [(8, [1024, 2048]), (16, [1024, 2048])]
