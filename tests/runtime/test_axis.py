"""The regions as an axis of torch's own process groups: what the plan says reaches NCCL, what cannot be is refused by name."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from torch._C import _distributed_c10d as c10d

from isthmus.errors import InputError
from isthmus.plan import RegionGroup, Strategy
from isthmus.runtime.axis import nccl_options, require_nccl
from isthmus.runtime.cluster import join
from isthmus.runtime.loopback import lone_plan

ASKED = RegionGroup(net_name="Socket", traffic_class=106, min_channels=2, max_channels=4)
TIMEOUT = timedelta(seconds=7)


class OldNCCL:
    """The shape of torch's class, with the NCCL of a time before traffic classes."""

    class Options:
        def __init__(self) -> None:
            self.config, self._timeout = SimpleNamespace(net_name=None, min_ctas=1, max_ctas=32), None


class NCCL:
    """With them."""

    class Options(OldNCCL.Options):
        def __init__(self) -> None:
            super().__init__()
            self.config.traffic_class = -1


def test_options_of_the_plan_are_those_of_this_group_alone() -> None:
    options = nccl_options(ASKED, NCCL, TIMEOUT)
    assert vars(options.config) == {"net_name": "Socket", "traffic_class": 106, "min_ctas": 2, "max_ctas": 4}
    assert options._timeout == TIMEOUT
    assert vars(nccl_options(RegionGroup(), NCCL, TIMEOUT).config) == vars(NCCL.Options().config), "None leaves NCCL's default"


def test_an_option_that_this_nccl_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"strategy\.region_group\.traffic_class: the NCCL of torch .* has no traffic_class"):
        nccl_options(ASKED, OldNCCL, TIMEOUT)


@pytest.mark.skipif(not hasattr(c10d, "ProcessGroupNCCL"), reason="THIS TORCH HAS NO NCCL: its real options were not built")
def test_torch_s_own_options_take_the_plan_s_values() -> None:
    asked = ASKED.model_copy(update={"traffic_class": None})  # of NCCL 2.27 and later
    config = nccl_options(asked, require_nccl(), TIMEOUT).config
    assert (config.net_name, config.min_ctas, config.max_ctas) == ("Socket", 2, 4)


@pytest.mark.skipif(hasattr(c10d, "ProcessGroupNCCL"), reason="this torch has NCCL")
def test_without_nccl_in_torch_the_plan_is_refused_before_anything_starts() -> None:
    plan = lone_plan(Strategy(name="static", kind="hierarchical", region_group=ASKED))
    with pytest.raises(InputError, match=r"backend: 'nccl', but torch .* was built without NCCL"), join(plan):
        pass


@pytest.mark.parametrize(
    ("change", "what"),
    [({"kind": "local-steps"}, "strategy.kind 'local-steps'"), ({"codec": "int8"}, "strategy.codec 'int8'")],
)
def test_what_torch_s_groups_cannot_do_is_refused(change: dict[str, str], what: str) -> None:
    plan = lone_plan(Strategy(**{"name": "x", "kind": "hierarchical", "region_group": RegionGroup(backend="gloo")} | change))
    with pytest.raises(InputError, match=f"region_group with {what}: that is not run"), join(plan):
        pass


def test_nccl_s_options_with_gloo_and_channels_out_of_order_are_no_plan() -> None:
    with pytest.raises(ValidationError, match="net_name is NCCL's, backend is 'gloo'"):
        RegionGroup(backend="gloo", net_name="IB")
    with pytest.raises(ValidationError, match="min_channels 8 is above max_channels 4"):
        RegionGroup(min_channels=8, max_channels=4)
