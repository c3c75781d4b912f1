"""Results of invented trials. The figures are made up for layout and arithmetic; nothing was run for them."""

import math
from collections.abc import Callable
from typing import Any

import pytest

Results = dict[str, Any]
COMPUTE_S, GRADIENT_BYTES, TOKENS = 0.312, 17_041_408, 8192


def _loss(floor: float, pace: float, points: int = 25) -> list[list[float]]:
    return [
        [i * 6 * TOKENS, round(floor + (5.55 - floor) * math.exp(-i * pace) + 0.012 * math.sin(2.1 * i), 4)]
        for i in range(points)
    ]


def _timeline(wan_s: float, buckets: int, local: bool) -> list[dict[str, Any]]:
    """Forward, then backward in buckets; each goes to the region when ready, then over the WAN in turn."""
    forward = COMPUTE_S / 3
    found = [{"lane": "compute", "what": "forward", "start_s": 0.0, "end_s": forward}]
    each, free = (COMPUTE_S - forward) / buckets, 0.0
    for bucket in range(buckets):
        start = forward + bucket * each
        ready = start + each
        found.append({"lane": "compute", "what": "backward", "start_s": start, "end_s": ready})
        if local:
            found.append({"lane": "region", "what": "reduce-scatter", "start_s": ready, "end_s": ready + 0.012})
            ready += 0.012
        if wan_s:
            begin = max(ready, free)
            free = begin + wan_s / buckets
            found.append({"lane": "wan", "what": f"bucket {bucket}", "start_s": begin, "end_s": free})
    return found


def _strategy(
    name: str, kind: str, codec: str, times: tuple[float, float], wan: tuple[float, float], floor: float
) -> dict[str, Any]:
    predicted_s, measured_s = times
    wan_bytes, wan_s = wan
    repeats = [round(measured_s * f, 4) for f in (0.97, 1.0, 1.045)]
    loss = _loss(floor, 0.16)
    return {
        "name": name,
        "kind": kind,
        "codec": codec,
        "plan": f"plan-{name}.yaml",
        "predicted": {
            "step_s": predicted_s,
            "compute_s": COMPUTE_S,
            "exposed_s": predicted_s - COMPUTE_S,
            "utilisation": COMPUTE_S / predicted_s,
            "tokens_per_s": TOKENS / predicted_s,
            "wan_bytes_per_step": wan_bytes,
            "memory_bytes_per_gpu": 3.1e8,
            "formula": "compute + exposed",
        },
        "measured": {
            "step_s": measured_s,
            "step_s_repeats": repeats,
            "off_step_s_repeats": [0.31, 0.312, 0.318],
            "tokens_per_s": round(TOKENS / measured_s, 2),
            "utilisation": round(0.314 / measured_s, 4),
            "exposed_s": measured_s - 0.314,
            "wan_bytes_per_step": wan_bytes * 1.004,
        },
        "ratio": round(predicted_s / measured_s, 4),
        "loss": loss,
        "loss_at_equal_tokens": loss[-1][1],
        "equal_tokens": loss[-1][0],
        "replicas_equal": True,
        "hash": f"{sum(map(ord, name)) * 0x9E3779B97F4A7C15 % 2**64:016x}",
        "seconds": round(measured_s * 150, 1),
        "timeline": _timeline(wan_s, 6, kind != "flat"),
    }


def _region(
    name: str, city: str, nodes: int, kind: str = "h100-sxm5", network: str = "infiniband", rate: float = 50e9
) -> dict[str, Any]:
    return {
        "name": name,
        "city": city,
        "nodes": nodes,
        "gpus": nodes * 8,
        "gpu_kind": kind,
        "network_kind": network,
        "network_rate_bytes_per_s": rate,
    }


def _link(a: str, b: str, rate: float, rtt_s: float) -> dict[str, Any]:
    return {"between": [a, b], "rate_bytes_per_s": rate, "rtt_s": rtt_s, "jitter_s": 1e-3, "loss": 1e-5, "transport": "tcp"}


def invented_results() -> Results:
    """Two regions and five strategies, one of them predicted badly."""
    return {
        "version": 1,
        "made": "2026-11-30T12:00:00+00:00",
        "isthmus": "0.1.0",
        "command": "(layout sample: invented figures, nothing was run)",
        "machine": {"cpus": 2, "kernel": "6.18.2", "python": "3.11.7", "torch": "2.13.0", "privilege": "user namespace"},
        "fabric": {
            "name": "Shenzhen - Shanghai (invented figures)",
            "source": "examples/shenzhen-shanghai.yaml",
            "regions": [_region("shenzhen", "Shenzhen", 2), _region("shanghai", "Shanghai", 2)],
            "wan": [_link("shenzhen", "shanghai", 12.5e9, 0.018)],
        },
        "workload": {"name": "llama-3-8b", "parameters": 8_030_261_248, "tokens_per_step": 4_194_304},
        "trial": {
            "model": "tiny",
            "parameters": 4_260_352,
            "gradient_bytes": GRADIENT_BYTES,
            "tokens_per_step": TOKENS,
            "steps": 144,
            "script": None,
        },
        "tunnel": {
            "nodes": {"shenzhen": 2, "shanghai": 2},
            "links": [
                {
                    "between": ["shenzhen", "shanghai"],
                    "rate_bytes_per_s": 11.4e6,
                    "rtt_s": 0.00164,
                    "jitter_s": 9e-5,
                    "loss": 1e-5,
                }
            ],
            "lateness_p99_s": 0.00031,
            "congestion_control": "bbr",
            "similitude": {
                "transfer_over_compute": {"asked": 4.79, "achieved": 4.77},
                "rtt_over_compute": {"asked": 0.00526, "achieved": 0.00527},
                "left_out": [
                    "NVLink and the network inside each region: nodes share this machine's memory",
                    "overlap on the GPU: here the ranks' CPU both computes and copies",
                    "loss bursts: every 1,500-byte packet is lost on its own",
                ],
            },
        },
        "compute_s": COMPUTE_S,
        "speeds": [{"name": "int4 encode", "bytes_per_s": 6.1e8}, {"name": "int4 decode", "bytes_per_s": 9.4e8}],
        "strategies": [
            _strategy("flat", "flat", "none", (1.871, 2.403), (GRADIENT_BYTES * 1.5, 1.62), 2.31),
            _strategy("hierarchical", "hierarchical", "none", (1.662, 1.731), (GRADIENT_BYTES, 1.49), 2.31),
            _strategy("hierarchical-int4", "hierarchical", "int4", (0.401, 0.423), (GRADIENT_BYTES * 0.133, 0.21), 2.324),
            _strategy("local-steps-32", "local-steps", "none", (0.338, 0.341), (GRADIENT_BYTES / 32, 0.05), 2.359),
            _strategy("local-steps-32-int4", "local-steps", "int4", (0.322, 0.331), (GRADIENT_BYTES / 240, 0.01), 2.37),
        ],
        "faults": [],
        "assumptions": [
            {
                "name": "TCP payload of a 1,500-byte packet",
                "value": 0.96533,
                "unit": "",
                "source": "RFC 9293; 1448 of 1500 bytes with timestamps",
            },
            {"name": "link rate", "value": 11.4e6, "unit": "bytes/s", "source": "as asked, see https://example.invalid/link"},
            {"name": "MFU of the real plan", "value": 0.4, "unit": "", "source": "judgement"},
        ],
    }


def _three_regions() -> Results:
    made = invented_results()
    made["fabric"] |= {
        "name": "Beijing - Shenzhen - Shanghai (invented figures)",
        "regions": [
            _region("beijing", "Beijing", 12, "a100-40g-sxm4", "roce", 25e9),
            _region("shenzhen", "Shenzhen", 4, "a100-40g-sxm4", "roce", 25e9),
            _region("shanghai", "Shanghai", 1, "a100-40g-sxm4", "roce", 25e9),
        ],
        "wan": [
            _link("beijing", "shenzhen", 5e9, 0.038),
            _link("shenzhen", "shanghai", 12.5e9, 0.018),
            _link("beijing", "shanghai", 5e9, 0.024),
        ],
    }
    made["tunnel"] |= {
        "nodes": {"beijing": 2, "shenzhen": 2, "shanghai": 1},
        "links": [
            {**link, "rate_bytes_per_s": link["rate_bytes_per_s"] / 1100, "rtt_s": link["rtt_s"] / 11}
            for link in made["fabric"]["wan"]
        ],
    }
    made["strategies"] = made["strategies"][:4]
    made["faults"] = [
        {"at_s": 12.0, "what": "down shenzhen-shanghai 5s", "seen": "flat stalled for 5.2 s and went on; no replica differed"}
    ]
    return made


def _no_loss() -> Results:
    made = invented_results()
    for one in made["strategies"]:
        one |= {"loss": [], "loss_at_equal_tokens": None, "equal_tokens": None, "replicas_equal": None, "hash": None}
        one["measured"]["utilisation"] = None
    made["strategies"][1]["replicas_equal"] = False
    return made


def _one_strategy() -> Results:
    made = invented_results()
    made["strategies"] = made["strategies"][2:3]
    made["tunnel"]["similitude"] = None
    return made


CASES: dict[str, Callable[[], Results]] = {
    "two-regions": invented_results,
    "three-regions": _three_regions,
    "no-loss": _no_loss,
    "one-strategy": _one_strategy,
}


@pytest.fixture
def results() -> Results:
    """Two regions, five strategies."""
    return invented_results()


@pytest.fixture(params=sorted(CASES))
def any_results(request: pytest.FixtureRequest) -> Results:
    """Each kind of trial in turn."""
    return CASES[request.param]()
