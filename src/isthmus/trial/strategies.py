"""The strategies a trial runs side by side, by the names users type."""

from typing import get_args

from isthmus.errors import InputError, nearest
from isthmus.plan import CodecName, Outer, Strategy, StrategyKind

__all__ = ["STRATEGIES", "trial_strategies"]

# A small model's gradient is a few MB: with DDP's 25 MiB buckets all of it would wait for the end of the backward pass.
_BUCKET_BYTES = 1 << 20
# One stream a rail: paced streams of a slow link send packets one by one, and each costs this machine's cores as much as a
# super-packet; with four the emulated link took 40% of a core, with one 14% (80 Mb/s, 5 ms, `hierarchical`).
_STREAMS = 1
# What `make quality` scores. DiLoCo's 0.7 and 0.9 need more outer rounds than a short run has (docs/decisions/log.md).
_OUTER = Outer(lr=0.8, momentum=0.4, nesterov=True)

# All but powersgd, whose bytes depend on the shapes of parameters: a trial predicts before it runs.
_CODECS: tuple[CodecName, ...] = tuple(codec for codec in get_args(CodecName) if codec not in ("none", "powersgd"))


def _strategy(name: str, kind: StrategyKind, codec: CodecName = "none") -> Strategy:
    return Strategy(name=name, kind=kind, codec=codec, bucket_bytes=_BUCKET_BYTES, streams=_STREAMS)


_LOCAL = _strategy("local-steps", "local-steps").model_copy(update={"inner_steps": 20, "outer": _OUTER})
# Local steps for a thin link: a fifth of the model in flight at a time, ten steps to cross. `make quality` scores it.
_STREAMED = _strategy("local-streamed", "local-steps", "int4").model_copy(
    update={
        "inner_steps": 50,
        "fragments": 5,
        "delay_steps": 10,
        "outer": Outer(lr=1.0, momentum=0.7, nesterov=True),
    }
)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        _strategy("flat", "flat"),
        _strategy("hierarchical", "hierarchical"),
        *(_strategy(codec, "hierarchical", codec) for codec in _CODECS),
        _LOCAL,
        _LOCAL.model_copy(update={"name": "local-delayed", "delay_steps": 5}),
        _STREAMED,
        *(_LOCAL.model_copy(update={"name": f"local-{codec}", "codec": codec}) for codec in _CODECS),
    )
}

# The names that `isthmus plan` prints for the same ways of joining regions.
_PLANNER_NAMES = {
    "hierarchical-bf16": "bf16",
    "hierarchical-int8": "int8",
    "hierarchical-int4": "int4",
    "local-20": "local-steps",
    "local-20-delayed": "local-delayed",
}
_KNOWN = f"known: {', '.join(STRATEGIES)}; or the planner's {', '.join(_PLANNER_NAMES)}"


def trial_strategies(names: tuple[str, ...]) -> tuple[Strategy, ...]:
    """The strategies called `names`, by the trial's names or the planner's, in that order.

    Raises:
        InputError: A name is unknown or given twice, or there is none.
    """
    if not names:
        raise InputError("--strategies", "names no strategy", _KNOWN)
    own = [_PLANNER_NAMES.get(name, name) for name in names]
    for name in own:
        if "powersgd" in name:
            raise InputError("--strategies", f"{name!r} cannot be predicted, as a trial must", "isthmus run takes it in a plan")
        if name not in STRATEGIES:
            near = nearest(name, [*STRATEGIES, *_PLANNER_NAMES])
            hint = f"{near}\n  {_KNOWN}" if near.startswith("did") else _KNOWN
            raise InputError("--strategies", f"unknown strategy {name!r}", hint)
        if own.count(name) > 1:
            raise InputError("--strategies", f"{name!r} is given twice")
    return tuple(STRATEGIES[name] for name in own)
