"""What a newcomer needs of an every-step run: parameters, buffers, the optimizer's state, the exchange's counts, and the place in
the data; as a JSON record and flat tensors, cut between the rails.

Where every rank holds the whole model, rail i of N carries the i-th part of every flat tensor, and a newcomer's ranks put their
parts together; of a model in shards, rail i carries what rank i holds. What the codec owes stays with the region that owes
it: a newcomer begins without. The order is that of the parameters, so equal states are equal bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.errors import InputError
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer
from isthmus.runtime.every_step.shards import in_shards, is_sharded, local_tensors
from isthmus.runtime.every_step.step import StepExchange
from isthmus.runtime.federation.states import Rejoined, State
from isthmus.runtime.snapshot import Stateful

__all__ = ["EveryStepKeeper"]

Flat = dict[str, torch.Tensor]


class EveryStepKeeper:
    """`federation.states.StateKeeper` of an every-step run; used on the communication thread, between two steps.

    Args:
        model: With float32 parameters.
        optimizer: Its states are numbers, or tensors of the parameter's size (SGD, AdamW, Adagrad and their like).
        exchange: Of its gradients.
        also: Schedulers and the like; their states must be JSON.
        place: The session's counts (steps, batches read, tokens), as JSON ...
        go_to: ... and how to take them over.

    Attributes:
        rejoined: How this region last took over the others' state.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: StepExchange,
        also: tuple[Stateful, ...] = (),
        place: tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]] = (dict, lambda _: None),
    ) -> None:
        self._model, self._optimizer, self._exchange, self._also = model, optimizer, exchange, also
        self._place, self._go_to = place
        self._sharded = is_sharded(model)
        self.rejoined: Rejoined | None = None

    def export_state(self, rail: int) -> State:
        """This rail's part."""
        flat, kept = self._flat()
        if not self._sharded:
            flat = {name: whole[slice(*self._bounds(whole.numel(), rail))].clone() for name, whole in flat.items()}
        reducer = self._exchange.reducer
        record: dict[str, Any] = {
            "kept": kept,
            "groups": [{key: value for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups],
            "also": [item.state_dict() for item in self._also],
            "epochs": self._exchange.epochs() if reducer is not None else {},
            "directions": [],
            "place": self._place(),
        }
        directions = reducer.directions(rail) if isinstance(reducer, HierarchicalReducer) else {}
        if directions:
            record["directions"] = [[name, list(held.shape)] for name, held in directions.items()]
            flat["directions"] = _joined(list(directions.values()))
        return State(record, {name: part for name, part in flat.items() if part.numel()})

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """Take over what the others hold; gathers over the region's group unless the model is in shards.

        Where the state was equal already (all regions came back from their checkpoints), what the codec owes stays too.
        """
        self.rejoined = rejoined
        if rejoined.why == "equal":
            return
        record = next(iter(parts.values())).record
        self._install(record, {name: self._whole(name, parts, size) for name, size in self._sizes(record).items()})
        for group, held in zip(self._optimizer.param_groups, record["groups"], strict=True):
            group.update({key: tuple(value) if isinstance(value, list) else value for key, value in held.items()})
        for item, state in zip(self._also, record["also"], strict=True):
            item.load_state_dict(state)
        if self._exchange.reducer is not None:
            epochs = {int(tag): epoch for tag, epoch in record["epochs"].items()}
            directions = {name: held for part in parts.values() for name, held in _directions(part).items()}
            self._exchange.reducer.load_state_dict({"feedback": {}, "epochs": epochs, "directions": directions})
        self._go_to(record["place"])

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _flat(self) -> tuple[Flat, dict[str, list[Any]]]:
        """Flat tensors by name; and of the optimizer's state, by key and parameter: a number, True for a tensor, None."""
        with torch.no_grad():
            flat = {"parameters": _joined(local_tensors(self._model.parameters()))}
            buffers = [buffer.detach().contiguous().view(-1).view(torch.uint8) for buffer in self._model.buffers()]
            flat["buffers"] = torch.cat(buffers).cpu() if buffers else torch.empty(0, dtype=torch.uint8)
            states = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters()]
            kept: dict[str, list[Any]] = {}
            for key in sorted({key for state in states for key in state}):
                held = [state.get(key) for state in states]
                pairs = zip(held, self._parameters(), strict=True)
                kept[key] = [_described(key, value, parameter) for value, parameter in pairs]
                tensors = [value for value, said in zip(held, kept[key], strict=True) if said is True]
                if tensors:
                    flat[f"optimizer {key}"] = _joined(local_tensors(tensors))
        return flat, kept

    def _sizes(self, record: Mapping[str, Any]) -> dict[str, int]:
        """Elements of the flat tensors that the others hold, as this rank's model has them."""
        own = [tensor.numel() for tensor in local_tensors(self._parameters())]
        sizes = {
            "parameters": sum(tensor.numel() for tensor in local_tensors(self._model.parameters())),
            "buffers": sum(buffer.nbytes for buffer in self._model.buffers()),
        }
        for key, said in record["kept"].items():
            sizes[f"optimizer {key}"] = sum(size for size, held in zip(own, said, strict=True) if held is True)
        return {name: size for name, size in sizes.items() if size}

    def _whole(self, name: str, parts: Mapping[int, State], size: int) -> torch.Tensor:
        """Put together what the region's ranks have received of one flat tensor."""
        held = {rail: state.tensors[name] for rail, state in parts.items() if name in state.tensors}
        if self._sharded:
            return next(iter(held.values()))
        dtype = torch.uint8 if name == "buffers" else torch.float32
        whole = torch.zeros(size, dtype=dtype)
        for rail, part in held.items():
            whole[slice(*self._bounds(size, rail))] = part
        group = self._exchange.federation.world.comm_group
        if group is not None and dist.get_world_size(group) > 1:
            group.allreduce([whole.view(torch.uint8)]).wait()  # a sum of disjoint bytes
        return whole

    def _bounds(self, elements: int, rail: int) -> tuple[int, int]:
        members = self._exchange.federation.environment.members
        rails = members.rails if members else 1
        return elements * rail // rails, elements * (rail + 1) // rails

    def _install(self, record: Mapping[str, Any], flat: Flat) -> None:
        with torch.no_grad():
            _dealt(flat["parameters"], local_tensors(self._model.parameters()))
            if "buffers" in flat:
                _dealt(flat["buffers"], [buffer.detach().view(-1).view(torch.uint8) for buffer in self._model.buffers()])
            self._optimizer.state.clear()
            for key, said in record["kept"].items():
                tensors: list[torch.Tensor] = []
                for parameter, held in zip(self._parameters(), said, strict=True):
                    if held is True:
                        value = self._optimizer.state[parameter][key] = torch.zeros_like(parameter)
                        tensors.append(value)
                    elif isinstance(held, list):
                        self._optimizer.state[parameter][key] = torch.tensor(held[0], dtype=torch.float32)
                    elif held is not None:
                        self._optimizer.state[parameter][key] = held
                if tensors:
                    _dealt(flat[f"optimizer {key}"], local_tensors(tensors))


def _directions(state: State) -> dict[str, torch.Tensor]:
    """PowerSGD's of one rail, which every region must hold alike."""
    held = [torch.empty(shape) for _, shape in state.record["directions"]]
    if held:
        _dealt(state.tensors["directions"], held)
    return {name: tensor for (name, _), tensor in zip(state.record["directions"], held, strict=True)}


def _described(key: str, value: Any, parameter: nn.Parameter) -> Any:
    """None for none, a bare number, a number in a list for one in a tensor, True for a tensor like the parameter."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        if value.ndim == 0:
            return [float(value)]
        if value.shape == parameter.shape and in_shards(value) == in_shards(parameter):
            return True
    raise InputError(
        "optimizer",
        f"its state {key!r} is neither a number nor a float32 tensor of the parameter's shape",
        "regions that join later can take over optimizers such as SGD and AdamW",
    )


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()


def _dealt(flat: torch.Tensor, into: list[torch.Tensor]) -> None:
    offset = 0
    for tensor in into:
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()
    assert offset == flat.numel(), (offset, flat.shape)
