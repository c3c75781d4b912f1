"""What training costs, from the user's own prices: computing, WAN, power and racks; per month and per trillion tokens."""

from math import ceil

from isthmus.fabric import Fabric, NodeGroup, Prices
from isthmus.plan import Money, MoneyRow, Prediction

__all__ = ["MONTH_S", "bill", "node_power_w"]

MONTH_S = 365.25 * 86400 / 12
"""A twelfth of a Julian year: 730.5 hours."""

_HOURS = MONTH_S / 3600


def bill(fabric: Fabric, prediction: Prediction) -> Money | None:
    """The bill of training at the predicted pace, without a stop; None where the fabric states no prices.

    Power is what the nodes draw at most (the catalogue's figure for a node, or the GPUs' board power where it has none), so an
    upper bound. Leaves out: switches, storage, people, and whatever no price was given for, which `left_out` names.
    """
    prices = fabric.prices
    if prices is None:
        return None
    power_w, gpus_only = _power_w(fabric)
    at_meter_w = power_w * (prices.pue or 1.0)
    racks = _racks(fabric, prices)
    rows = [
        *_computing(fabric, prices),
        *_wan(fabric, prices, prediction),
        *_energy(prices, at_meter_w, gpus_only),
        *_rack_rows(prices, racks),
    ]
    month = sum(row.per_month for row in rows)
    return Money(
        currency=prices.currency,
        as_of=prices.as_of,
        per_month=month,
        per_trillion_tokens=month / (prediction.tokens_per_s * MONTH_S) * 1e12,
        rows=rows,
        left_out=_left_out(fabric, prices),
        power_w=at_meter_w,
        racks=racks,
    )


def node_power_w(group: NodeGroup) -> tuple[float, bool]:
    """(watts of one node at most, whether that counts its GPUs only)."""
    return (group.power_w, False) if group.power_w is not None else (group.gpus * group.gpu.tdp_w, True)


def _power_w(fabric: Fabric) -> tuple[float, bool]:
    each = [(group.count, *node_power_w(group)) for region in fabric.regions for group in region.groups]
    return sum(count * watts for count, watts, _ in each), any(gpus_only for _, _, gpus_only in each)


def _racks(fabric: Fabric, prices: Prices) -> int | None:
    """Racks that feed the nodes, none shared between regions; a node is never split."""
    limit = prices.rack_power_w
    if limit is None:
        return None
    racks = 0
    for region in fabric.regions:
        for group in region.groups:
            watts, _ = node_power_w(group)
            racks += ceil(group.count / max(1, int(limit // watts))) * ceil(watts / limit)
    return racks


def _computing(fabric: Fabric, prices: Prices) -> list[MoneyRow]:
    nodes = sum(region.nodes for region in fabric.regions)
    unit = f"{prices.currency} x {_HOURS:g} h"
    if prices.gpu_hour is not None:
        how = f"{fabric.gpus} GPUs x {prices.gpu_hour:g} {unit}"
        return [MoneyRow(name="GPUs", per_month=fabric.gpus * prices.gpu_hour * _HOURS, how=how)]
    if prices.node_hour is not None:
        how = f"{nodes} nodes x {prices.node_hour:g} {unit}"
        return [MoneyRow(name="nodes", per_month=nodes * prices.node_hour * _HOURS, how=how)]
    if prices.node_month is not None:
        how = f"{nodes} nodes x {prices.node_month:g} {prices.currency}"
        return [MoneyRow(name="nodes", per_month=nodes * prices.node_month, how=how)]
    return []


def _wan(fabric: Fabric, prices: Prices, prediction: Prediction) -> list[MoneyRow]:
    rows: list[MoneyRow] = []
    if not fabric.wan:
        return rows
    if prices.wan_month is not None:
        rows.append(MoneyRow(name="WAN links", per_month=prices.wan_month, how="as stated, all links together"))
    if prices.wan_gb is not None:
        gigabytes = len(fabric.regions) * prediction.wan_bytes_per_step / prediction.step_s * MONTH_S / 1e9
        how = f"{gigabytes:,.0f} GB x {prices.wan_gb:g} {prices.currency}; every region counted like the busiest"
        rows.append(MoneyRow(name="WAN traffic", per_month=gigabytes * prices.wan_gb, how=how))
    return rows


def _energy(prices: Prices, at_meter_w: float, gpus_only: bool) -> list[MoneyRow]:
    if prices.kwh is None:
        return []
    what = "board power of the GPUs only" if gpus_only else "the nodes' most"
    cooling = f", PUE {prices.pue:g}" if prices.pue else ""
    how = f"{at_meter_w / 1e3:,.1f} kW ({what}{cooling}) x {_HOURS:g} h x {prices.kwh:g} {prices.currency}"
    name = "power and cooling" if prices.pue else "power"
    return [MoneyRow(name=name, per_month=at_meter_w / 1e3 * _HOURS * prices.kwh, how=how)]


def _rack_rows(prices: Prices, racks: int | None) -> list[MoneyRow]:
    if prices.rack_month is None or racks is None:
        return []
    how = f"{racks} racks x {prices.rack_month:g} {prices.currency}"
    return [MoneyRow(name="racks", per_month=racks * prices.rack_month, how=how)]


def _left_out(fabric: Fabric, prices: Prices) -> list[str]:
    missing = [] if any(_computing(fabric, prices)) else ["computing (gpu_hour, node_hour or node_month)"]
    if fabric.wan and prices.wan_month is None and prices.wan_gb is None:
        missing.append("WAN (wan_month or wan_gb)")
    missing += ["power (kwh)"] if prices.kwh is None else [] if prices.pue else ["cooling (pue)"]
    missing += ["racks (rack_month)"] if prices.rack_month is None else []
    return [*missing, "switches, storage, people"]
