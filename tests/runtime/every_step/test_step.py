"""Steps as rounds: what a step that had to be repeated leaves behind. Real ranks on loopback; the rounds fail by script."""

from typing import Any

import pytest

from isthmus.plan import CodecName, Strategy

pytestmark = pytest.mark.tunnel


def run(nursery: Any, way: str, codec: CodecName, counts: tuple[int, ...] = (2, 2), **options: Any) -> Any:
    """Four steps by scripted.py in regions of `counts` ranks."""
    strategy = Strategy(name="test", kind="hierarchical", codec=codec, bucket_bytes=4096)
    regions = {f"r{number}": ranks for number, ranks in enumerate(counts)}
    return nursery.run(strategy, scenario="steps", regions=regions, way=way, steps=4, **options)


@pytest.mark.parametrize(
    ("way", "codec", "counts"),
    [("ddp", "int4", (2, 3)), ("fsdp", "int8", (2, 2)), ("ddp", "int8", (1, 2, 1)), ("hsdp", "int4", (2, 2)),
     ("bf16", "none", (2, 2)), ("ddp", "powersgd", (2, 3))],
)
def test_repeated_steps_leave_the_bits_of_steps_that_never_failed(
    way: str, codec: CodecName, counts: tuple[int, ...], nursery: Any
) -> None:
    fails = {"0": {"how": "late"}, "1": {"how": "early"}, "3": {"how": "late"}}
    smooth = run(nursery, way, codec, counts).succeeded().said()
    rough = run(nursery, way, codec, counts, fails=fails).succeeded().said()
    assert len(smooth) == len(rough) == sum(counts)
    assert len({line["hash"] for line in smooth + rough}) == 1
    assert len({tuple(line["digests"]) for line in smooth + rough}) == 1
    assert [line["owed"] for line in smooth] == [line["owed"] for line in rough]
    assert all(line["parts"] >= 2 for line in smooth)
    assert any(line["early"] for line in smooth)  # some part was under way before its backward pass had ended


@pytest.mark.parametrize(("way", "counts"), [("ddp", (1, 2, 1)), ("fsdp", (2, 2, 2))])
def test_survivors_go_on_without_the_lost_region_and_lose_no_step(way: str, counts: tuple[int, ...], nursery: Any) -> None:
    fails = {"2": {"how": "late", "regions": ["r0", "r2"]}}
    lines = run(nursery, way, "int8", counts, fails=fails).succeeded().said()
    assert len(lines) == counts[0] + counts[2]
    assert len({line["hash"] for line in lines}) == 1
    assert all(len(line["digests"]) == 4 for line in lines)


def test_a_region_left_alone_trains_on_its_own_gradients(nursery: Any) -> None:
    lines = run(nursery, "fsdp", "int4", fails={"1": {"how": "early", "regions": ["r1"]}}).succeeded().said()
    assert len(lines) == 2
    assert len({line["hash"] for line in lines}) == 1


@pytest.mark.parametrize(("way", "codec", "counts"), [("fsdp", "none", (2, 2)), ("ddp", "powersgd", (1, 3))])
def test_the_state_of_a_region_is_whole_in_what_its_rails_carry(
    way: str, codec: CodecName, counts: tuple[int, ...], nursery: Any
) -> None:
    lines = run(nursery, way, codec, counts, newcomer=True).succeeded().said()
    assert len(lines) == sum(counts)
    assert all(line["directions"] for line in lines) == (codec == "powersgd")


def test_a_policy_that_reduces_in_bf16_is_refused_by_name(nursery: Any) -> None:
    outcome = run(nursery, "reduce in bf16", "none")
    assert set(outcome.codes) == {1}
    assert all("FSDP2 reduces gradients as torch.bfloat16" in log for log in outcome.logs), outcome.logs
    assert all("reduce_dtype=torch.float32" in log for log in outcome.logs)
