"""Pipelines over real rails, a thread a region: equal to one process that accumulates the same micro-batches."""

import contextlib
import copy
import socket
import threading

import pytest
import torch
from torch import nn

from isthmus.plan import Strategy
from isthmus.runtime.environment import Members
from isthmus.runtime.pipeline.model import PipelinedModel
from isthmus.runtime.wan.rail import Rail

WAYS = {
    "1f1b, 2 regions": (2, Strategy(name="p", kind="pipeline", micro_batches=8)),
    "1f1b, 3 regions": (3, Strategy(name="p", kind="pipeline", micro_batches=8)),
    "1f1b, fewer micro-batches than regions": (3, Strategy(name="p", kind="pipeline", micro_batches=2)),
    "interleaved, 2 regions": (2, Strategy(name="p", kind="pipeline", micro_batches=8, schedule="interleaved", virtual_stages=3)),
    "interleaved, 3 regions": (3, Strategy(name="p", kind="pipeline", micro_batches=6, schedule="interleaved", virtual_stages=2)),
}


def in_regions(regions, work, timeout_s=20.0):
    """`work(rail)` in every region at once, a thread each over real sockets; what each returned or raised."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(regions)]
    names = ("east", "north", "west")
    listed = [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name, port in zip(names, ports, strict=False)]
    members, results = Members.model_validate({"regions": listed}), [None] * regions

    def run(region):
        try:
            with Rail.open(members, region, 0, 2, timeout_s) as rail:
                results[region] = work(rail)
        except Exception as error:
            results[region] = error

    threads = [threading.Thread(target=run, args=(region,)) for region in range(regions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hung"
    return results


def succeeded(results):
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def model_and_batches(samples=24, steps=4):
    torch.manual_seed(1)
    layers = [layer for _ in range(7) for layer in (nn.Linear(12, 12), nn.Tanh())]
    model = nn.Sequential(nn.Linear(5, 12), *layers, nn.Linear(12, 3))
    return model, [(torch.randn(samples, 5), torch.randn(samples, 3)) for _ in range(steps)]


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def alone(model, batches, micro_batches, clip=None):
    """Losses, and parameters by name, after plain training with accumulation over `micro_batches`."""
    model, losses = copy.deepcopy(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for inputs, targets in batches:
        parts = list(zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True))
        found = [nn.functional.mse_loss(model(x), y) for x, y in parts]
        for loss in found:
            (loss / micro_batches).backward()
        losses.append(sum(float(loss.detach()) for loss in found) / micro_batches)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses, [parameter.detach() for parameter in model.parameters()]


def piped(way, model, batches, clip=None, **changes):
    """Losses of each region, and all parameters in the model's order, after the same training in a pipeline."""
    regions, strategy = WAYS[way]
    strategy, copies = strategy.model_copy(update=changes), [copy.deepcopy(model) for _ in range(regions)]

    def work(rail):
        held, given = PipelinedModel(copies[rail.region], rail, strategy), copies[rail.region]
        optimizer, losses, norms = torch.optim.AdamW(held.parameters(), lr=0.01), [], []
        for inputs, targets in batches:
            losses.append(held.step(inputs, targets, nn.functional.mse_loss))
            if clip:
                norms.append(held.clip_gradients(clip))
            optimizer.step()
            optimizer.zero_grad()
        mine = {id(parameter) for parameter in held.parameters()}
        outputs = None
        with torch.no_grad():
            outputs = held(batches[0][0])
        return losses, [(id(p) in mine, p.detach()) for p in given.parameters()], outputs, norms

    results = succeeded(in_regions(regions, work))
    owned = [[mine for mine, _ in found[1]] for found in results]
    assert all(sum(column) == 1 for column in zip(*owned, strict=True)), "each parameter has one region"
    whole = [next(p for mine, p in column if mine) for column in zip(*(found[1] for found in results), strict=True)]
    return [found[0] for found in results], whole, [found[2] for found in results], [found[3] for found in results]


@pytest.mark.parametrize("way", WAYS)
def test_a_pipeline_trains_bit_for_bit_as_one_process_does(way):
    model, batches = model_and_batches()
    losses, parameters = alone(model, batches, WAYS[way][1].micro_batches)
    found, whole, outputs, _ = piped(way, model, batches)
    assert all(seen == losses for seen in found), "every region knows the loss"
    assert torch.equal(flat(whole), flat(parameters))
    # Evaluated through the pipeline, the whole model answers in every region.
    for parameter, value in zip(model.parameters(), whole, strict=True):
        parameter.data.copy_(value)
    assert all(torch.equal(output, model(batches[0][0])) for output in outputs)
    # And as the whole batch at once does, within rounding.
    for one, other in zip(whole, alone(model_and_batches()[0], batches, 1)[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("way", ["1f1b, 3 regions", "interleaved, 2 regions"])
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(way):
    model, batches = model_and_batches()
    expected = alone(model, batches, WAYS[way][1].micro_batches, clip=0.05)
    found, whole, _, norms = piped(way, model, batches, clip=0.05)
    assert all(seen == norms[0] for seen in norms), "the norm is the same to the last bit everywhere"
    assert min(norms[0]) > 0.05, "nothing was clipped"
    torch.testing.assert_close(flat(whole), flat(expected[1]), rtol=1e-4, atol=1e-5)
    assert found[0] == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.parametrize("way", ["1f1b, 3 regions", "interleaved, 2 regions"])
@pytest.mark.parametrize(("codec", "bound"), [("bf16", 2.0**-8), ("int8", 1 / 127)])
def test_coded_activations_move_the_gradients_by_little(way, codec, bound):
    # One rounding of each activation, and of each gradient, by at most `bound` of its block's largest, at up to five
    # boundaries; through tanh layers of norm about one that adds up to some multiple of it.
    regions, strategy = WAYS[way]
    model, ((inputs, targets), *_) = model_and_batches()

    def gradients(codec):
        copies = [copy.deepcopy(model) for _ in range(regions)]

        def work(rail):
            held = PipelinedModel(copies[rail.region], rail, strategy.model_copy(update={"codec": codec}))
            held.step(inputs, targets, nn.functional.mse_loss)
            return [p.grad for p in copies[rail.region].parameters()], rail.wan_bytes_sent()

        results = succeeded(in_regions(regions, work))
        merged = [next(g for g in column if g is not None) for column in zip(*(found[0] for found in results), strict=True)]
        return flat(merged), sum(found[1] for found in results)

    exact, coded = gradients("none"), gradients(codec)
    error = float((coded[0] - exact[0]).norm() / exact[0].norm())
    assert 0 < error < 8 * bound
    assert coded[1] < exact[1]
