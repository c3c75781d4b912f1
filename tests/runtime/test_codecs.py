"""Every codec of a plan, by the front door: regions end with the same bits, near where fp32 ends."""

from typing import Any, get_args

import pytest
import torch

from isthmus.plan import CodecName, Strategy

CODECS = get_args(CodecName)
DENSITY = 0.1


def strategies() -> list[Strategy]:
    every = [Strategy(name=f"every {codec}", kind="hierarchical", codec=codec, codec_density=DENSITY) for codec in CODECS]
    local = [
        Strategy(name=f"local {codec}", kind="local-steps", inner_steps=2, codec=codec, codec_density=DENSITY)
        for codec in CODECS
        if codec != "powersgd"
    ]
    return every + local


@pytest.mark.tunnel
def test_every_codec_trains_in_every_step_and_in_local_steps(nursery: Any) -> None:
    # Two regions of one rank, each way in the same processes. Where six steps lead with a codec must be where they lead with
    # fp32 by and large, signs and a tenth of the elements included: what codecs leave out is owed and comes later.
    ways = [way.model_dump() for way in strategies()]
    patient = {region: {"TEST_TIMEOUT_S": "60"} for region in ("east", "west")}  # where nothing is compiled yet, each compiles
    run = nursery.run(
        strategies()[0], scenario="each in turn", regions={"east": 1, "west": 1}, strategies=ways, steps=6, batch=2,
        timeout_s=110.0, variables=patient,
    ).succeeded()  # fmt: skip
    east, west = run.parameters
    start = nursery.run(strategies()[0], regions={"east": 1, "west": 1}, steps=0).succeeded().parameters[0]
    for way in strategies():
        assert torch.equal(east[way.name], west[way.name]), way.name
        exact = east[f"{way.name.split()[0]} none"] - start
        moved = east[way.name] - start
        cosine = float(moved @ exact / (moved.norm() * exact.norm()))
        assert cosine > {"topk": 0.8, "topk-int4": 0.8, "sign": 0.7, "sign-majority": 0.5}.get(way.codec, 0.9), way.name


@pytest.mark.tunnel
def test_powersgd_is_exact_where_its_rank_suffices_in_regions_of_unequal_size(nursery: Any) -> None:
    # Three ranks of one sample each: gradients of rank 3 at most, on two rails that cut every matrix. Rank 1 is not enough.
    regions, ends = {"east": 2, "west": 1}, {}
    for name, codec, rank in (("fp32", "none", 1), ("3", "powersgd", 3), ("1", "powersgd", 1)):
        way = Strategy(name=name, kind="hierarchical", codec=codec, codec_rank=rank)
        run = nursery.run(way, regions=regions, steps=4, batch=1).succeeded()
        assert all(torch.equal(found, run.parameters[0]) for found in run.parameters)
        ends[name] = run.parameters[0]
    torch.testing.assert_close(ends["3"], ends["fp32"], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(ends["1"], ends["fp32"], rtol=1e-3, atol=1e-3)


@pytest.mark.tunnel
def test_a_region_with_another_backend_inside_trains_to_the_same_bits(nursery: Any) -> None:
    # As of unlike vendors: west's ranks talk through a backend of their own, registered by the script. What crosses is summed
    # from everyone's parts in rank order by our own code, so that the backend does not show.
    way = Strategy(name="int8", kind="hierarchical", codec="int8")
    same = nursery.run(way, steps=4).succeeded()
    mixed = nursery.run(way, steps=4, relayed=["west"]).succeeded()
    assert len(same.hashes() | mixed.hashes()) == 1
