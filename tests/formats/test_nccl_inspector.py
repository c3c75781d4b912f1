import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import InputError
from isthmus.formats.measurements import read_measured_runs
from isthmus.formats.nccl_inspector import inspector_runs


def record(rank: int, kind: str, number: int, size: int, microseconds: float) -> dict[str, Any]:
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "a", "pid": 1},
        "coll_perf": {"coll": kind, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": microseconds},
    }


def test_the_readmes_example_has_the_algbw_it_states() -> None:
    # 17,179,869,184 B in 61,974 us: the README's coll_algobw_gbs is 277.210914.
    [run] = inspector_runs(json.dumps(record(2, "AllReduce", 1407, 17179869184, 61974), indent=2), "x.json")
    assert (run.collective, run.ranks, run.nodes) == ("all-reduce", 8, 1)
    assert run.rows[0].size_bytes / run.rows[0].seconds / 1e9 == pytest.approx(277.21, abs=0.01)


def test_a_dump_is_known_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(record(0, "AllReduce", number, 1 << 20, 40.0)) for number in range(3))
    for name in ("rank0.log", "rank0.jsonl"):
        (tmp_path / name).write_text(text)
        [run] = read_measured_runs(tmp_path / name)
        assert (run.collective, run.rows[0].seconds) == ("all-reduce", pytest.approx(40e-6))


def test_a_reduce_scatter_is_counted_whole() -> None:
    # 2,147,483,648 B a rank in 41,057 us on 8 ranks: the README's algbw is 418.44, eight times one rank's share.
    [run] = inspector_runs(json.dumps(record(4, "ReduceScatter", 1231, 2147483648, 41057)), "x.json")
    assert run.rows[0].size_bytes / run.rows[0].seconds / 1e9 == pytest.approx(418.44, abs=0.01)


def test_waiting_ranks_do_not_count_and_operations_are_a_median() -> None:
    lines = [record(rank, "AllReduce", number, 1024, 100 * number + 50 * rank) for number in (1, 2, 9) for rank in (0, 1)]
    text = "\n".join(json.dumps(line) for line in [*lines, {"header": {}, "dump_stats": {}}, {"p2p_perf": {}, "header": {}}])
    [run] = inspector_runs(text, "x.json")
    assert run.rows[0].seconds == pytest.approx(200e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"header": {}}\n{"coll_perf"', "x.json:2: is not JSON"),
        ('{"header": {"n_ranks": 8}, "coll_perf": {"coll": "AllReduce"}}', "x.json:1: lacks or garbles a field"),
        ('{"header": {}, "p2p_perf": {}}', "x.json: holds no `coll_perf`"),
        ("[3]", "x.json:1: is int, not an object"),
    ],
)
def test_what_is_not_inspectors_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        inspector_runs(text, "x.json")
