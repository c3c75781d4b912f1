"""`isthmus workload`: what a model is and costs, before any fabric is named."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.units import show_bytes
from isthmus.workload import (
    Axes,
    Recompute,
    Workload,
    active_parameter_count,
    flop_per_token,
    gpu_memory,
    micro_batches,
    mtp_parameter_count,
    parameter_count,
    read_workload,
    sent_bytes,
    state_bytes,
    traffic,
)

EXAMPLES = """Examples:

isthmus workload llama-3-8b

isthmus workload gpt3-175b --dp 8 --tp 8 --pp 8 --zero 1

isthmus workload path/to/config.json --json
"""

ZeroStage = Literal[0, 1, 2, 3]


def workload(  # noqa: PLR0913 -- each parameter is one option of the command
    name: Annotated[str, typer.Argument(help="A preset, a workload.yaml, or a Hugging Face config.json.")],
    *,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas.", min=1)] = 1,
    tp: Annotated[int, typer.Option(help="Tensor parallelism, with sequence parallelism.", min=1)] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.", min=1)] = 1,
    cp: Annotated[int, typer.Option(help="Context parallelism.", min=1)] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallelism, within dp x cp.", min=1)] = 1,
    zero: Annotated[int, typer.Option(help="ZeRO stage.", min=0, max=3)] = 0,
    micro_batch: Annotated[int, typer.Option(help="Sequences of one forward pass.", min=1)] = 1,
    recompute: Annotated[Recompute, typer.Option(help="What the backward pass computes again.")] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Show a model's parameters, FLOPs, memory and traffic."""
    axes = Axes(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero=cast(ZeroStage, zero),
        micro_batch=micro_batch,
        recompute=recompute,
    )
    figures = _figures(read_workload(name), axes)
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    console = Console()
    for table in (_model_table(figures), _gpu_table(figures), _traffic_table(figures)):
        console.print(table)
    Console(stderr=True).print(_notes(figures), markup=False, highlight=False)


def _figures(loaded: Workload, axes: Axes) -> dict[str, Any]:
    """All figures of the command, in SI units, as `--json` prints them."""
    shape, memory = loaded.shape, gpu_memory(loaded, axes)
    state = state_bytes(shape, loaded.precision, loaded.gradient_bytes)
    return {
        "workload": asdict(loaded) | {"tokens_per_step": loaded.tokens_per_step},
        "parameters": {
            "total": parameter_count(shape),
            "active": active_parameter_count(shape),
            "multi_token_prediction": mtp_parameter_count(shape),
        },
        "flop_per_token": {
            recompute: {
                attention: flop_per_token(shape, loaded.sequence_length, recompute, attention)
                for attention in ("none", "causal", "full")
            }
            for recompute in ("none", "selective", "full")
        },
        "state_bytes": asdict(state) | {"total": state.total},
        "axes": asdict(axes) | {"gpus": axes.gpus, "micro_batches": micro_batches(loaded, axes)},
        "memory_bytes_per_gpu": {
            "stage": memory.stage,
            **asdict(memory.state),
            "activations": memory.activations,
            "total": memory.total,
        },
        "traffic": [asdict(item) | {"sent_bytes": sent_bytes(item)} for item in traffic(loaded, axes)],
    }


def _model_table(figures: dict[str, Any]) -> Table:
    table = Table("figure", "value", title=f"{figures['workload']['name']}: the model and one step")
    parameters, flop = figures["parameters"], figures["flop_per_token"]
    table.add_row("parameters", f"{parameters['total']:,}")
    table.add_row("  met by one token", f"{parameters['active']:,}")
    if parameters["multi_token_prediction"]:
        table.add_row("  multi-token prediction, beside them", f"{parameters['multi_token_prediction']:,}")
    table.add_row("tokens a step", f"{figures['workload']['tokens_per_step']:,}")
    table.add_row("training FLOP per token, 6 N alone", f"{flop['none']['none']:.4g}")
    table.add_row("  with attention, all columns (as MFU counts)", f"{flop['none']['full']:.4g}")
    table.add_row("  with attention, causal half", f"{flop['none']['causal']:.4g}")
    table.add_row("  executed under selective recomputation", f"{flop['selective']['full']:.4g}")
    table.add_row("  executed under full recomputation", f"{flop['full']['full']:.4g}")
    table.add_row(
        "training FLOP a step", f"{flop['none']['full'] * figures['workload']['tokens_per_step']:.4g}"
    )
    for key, size in figures["state_bytes"].items():
        table.add_row(
            "training state, all together" if key == "total" else f"training state: {key}", show_bytes(size)
        )
    return table


def _gpu_table(figures: dict[str, Any]) -> Table:
    axes, memory = figures["axes"], figures["memory_bytes_per_gpu"]
    degrees = " ".join(
        f"{key}={axes[key]}" for key in ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "recompute")
    )
    title = f"{axes['gpus']} GPUs: {degrees}"
    table = Table("on the fullest GPU", "bytes", title=title, min_width=len(title))
    for key in ("weights", "gradients", "master", "optimizer", "activations", "total"):
        table.add_row(key, show_bytes(memory[key]))
    return table


def _traffic_table(figures: dict[str, Any]) -> Table:
    title = f"what one rank sends in one step ({figures['axes']['micro_batches']} micro-batches)"
    table = Table("axis", "op", "phase", "tensor", title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("per op", "ops", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("hides")
    for item in figures["traffic"]:
        table.add_row(
            f"{item['axis']} x{item['group']}",
            item["op"],
            item["phase"],
            item["what"],
            show_bytes(item["bytes_per_op"]),
            f"{item['ops_per_step']:,}",
            show_bytes(item["sent_bytes"]),
            "yes" if item["overlappable"] else "no",
        )
    if not figures["traffic"]:
        table.caption = "nothing: give --dp, --tp, --pp, --cp or --ep"
    return table


def _notes(figures: dict[str, Any]) -> str:
    assumed = "".join(f"\nassumed: {text}" for text in figures["workload"]["assumed"])
    return f"source: {figures['workload']['source']}{assumed}"
