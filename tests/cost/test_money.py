"""The bill, worked by hand, and that nothing is charged that has no price."""

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.cost.money import bill
from isthmus.errors import InputError
from isthmus.fabric import Prices, parse_fabric, read_fabric
from isthmus.plan import Prediction

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRIC = read_fabric(EXAMPLES / "shenzhen-shanghai.yaml")
# 1 s a step, 10^6 tokens, 10 GB out of each region.
PREDICTION = Prediction(
    step_s=1, compute_s=1, exposed_s=0, utilisation=1, tokens_per_s=1e6, wan_bytes_per_step=10e9, memory_bytes_per_gpu=0,
    formula="",
)  # fmt: skip


def test_the_bill_by_hand() -> None:
    # 32 GPUs; 4 nodes of 10.2 kW; 730.5 h = 2,629,800 s a month. Racks of 25 kW hold 2 nodes: one a region.
    prices = Prices(currency="USD", gpu_hour=2, wan_month=1000, wan_gb=0.01, kwh=0.1, pue=1.5, rack_month=500, rack_power_w=25e3)
    money = bill(replace(FABRIC, prices=prices), PREDICTION)
    assert money is not None
    by_name = {row.name: row.per_month for row in money.rows}
    assert by_name == pytest.approx({
        "GPUs": 32 * 2 * 730.5,
        "WAN links": 1000,
        "WAN traffic": 2 * 10 * 2_629_800 * 0.01,
        "power and cooling": 4 * 10.2 * 1.5 * 730.5 * 0.1,
        "racks": 2 * 500,
    })  # fmt: skip
    assert money.per_month == pytest.approx(sum(by_name.values()))
    assert money.per_trillion_tokens == pytest.approx(money.per_month / 2.6298)
    assert (money.power_w, money.racks) == (pytest.approx(61_200), 2)


def test_what_has_no_price_is_named_and_never_charged() -> None:
    assert bill(FABRIC, PREDICTION) is None
    money = bill(replace(FABRIC, prices=Prices(currency="CNY", node_month=100_000)), PREDICTION)
    assert money is not None
    assert [(row.name, row.per_month) for row in money.rows] == [("nodes", 400_000)]
    for word in ("WAN", "power", "racks"):
        assert any(word in left for left in money.left_out)


def test_two_prices_of_one_thing_are_refused_where_they_stand() -> None:
    text = (EXAMPLES / "one-node.yaml").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="gpu_hour is given too"):
        parse_fabric(text + "prices: {currency: USD, gpu_hour: 2, node_hour: 16}\n", "f.yaml")
