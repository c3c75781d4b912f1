"""Pipelines over real rails, a thread a region: equal to one process that accumulates the same micro-batches."""

import copy
import threading

import pytest
import torch
from torch import nn

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.environment import Members
from isthmus.runtime.hashing import ReplicaMismatchError
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.pipeline.model import PipelinedModel
from isthmus.runtime.pipeline.orders import Depth, in_flight, order
from isthmus.runtime.wan.frames import PeerLostError
from isthmus.runtime.wan.rail import Rail

WAYS = {
    "1f1b, 2 regions": (2, Strategy(name="p", kind="pipeline", micro_batches=8)),
    "1f1b, 3 regions": (3, Strategy(name="p", kind="pipeline", micro_batches=8)),
    "1f1b, fewer micro-batches than regions": (3, Strategy(name="p", kind="pipeline", micro_batches=2)),
    "interleaved, 2 regions": (2, Strategy(name="p", kind="pipeline", micro_batches=8, schedule="interleaved", virtual_stages=3)),
    "interleaved, 3 regions": (3, Strategy(name="p", kind="pipeline", micro_batches=6, schedule="interleaved", virtual_stages=2)),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads of three regions on two cores wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_regions(regions, work, timeout_s=20.0):
    """`work(rail)` in every region at once, a thread each over real sockets; what each returned or raised."""
    ports = zip(("east", "north", "west"), free_ports(regions), strict=False)
    listed = [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name, port in ports]
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
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLostError)):  # the cause before what it led to
        raise error
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


def test_two_steps_before_the_optimizer_add_their_gradients():
    model, batches = model_and_batches(steps=2)
    plain = copy.deepcopy(model)
    for inputs, targets in batches:
        for x, y in zip(inputs.chunk(4), targets.chunk(4), strict=True):
            (nn.functional.mse_loss(plain(x), y) / 4).backward()
    copies = [copy.deepcopy(model) for _ in range(2)]

    def work(rail):
        held = PipelinedModel(copies[rail.region], rail, Strategy(name="p", kind="pipeline", micro_batches=4))
        for inputs, targets in batches:
            held.step(inputs, targets, nn.functional.mse_loss)

    succeeded(in_regions(2, work))
    for number, parameter in enumerate(plain.parameters()):
        held = [list(given.parameters())[number].grad for given in copies]
        found = next(gradient for gradient in held if gradient is not None)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-7)


def test_one_region_alone_accumulates_micro_batches_and_needs_no_rail():
    model, batches = model_and_batches(steps=2)
    losses, parameters = alone(model, batches, 4)
    strategy = Strategy(name="p", kind="pipeline", micro_batches=4, schedule="interleaved", virtual_stages=2)
    held = PipelinedModel(model, None, strategy)
    optimizer = torch.optim.AdamW(held.parameters(), lr=0.01)
    found = []
    for inputs, targets in batches:
        found.append(held.step(inputs, targets, nn.functional.mse_loss))
        optimizer.step()
        optimizer.zero_grad()
    assert found == losses
    assert torch.equal(flat(held.parameters()), flat(parameters))


@pytest.mark.parametrize("virtual", [1, 2])
def test_dropout_follows_from_step_stage_and_micro_batch_and_not_from_how_far_regions_run_ahead(virtual):
    # One region at a time can be played here (threads share a random generator): off blocks need no other region.
    model, turn = nn.Sequential(*(nn.Dropout(0.5) for _ in range(2 * virtual))), threading.Barrier(2)
    schedule = "1f1b" if virtual == 1 else "interleaved"
    strategy = Strategy(name="p", kind="pipeline", micro_batches=4, schedule=schedule, virtual_stages=virtual)
    masks: dict[tuple[int, ...], list[list[torch.Tensor]]] = {}

    def watch(chunk, kept):
        return chunk.register_forward_hook(lambda _module, _inputs, out: kept.append(out.detach().clone()))

    def work(rail):
        held = PipelinedModel(model, rail, strategy)
        held.step(torch.ones(8, 64), torch.ones(8, 64), nn.functional.mse_loss)
        turn.wait(20)
        if rail.region:
            return
        held.crossing = False
        for depth in (Depth(2, (0, 0)), Depth(4, (2, 2)), Depth(2, (8, 8))):
            held.run_ahead(depth)
            torch.manual_seed(11)
            masks[depth.extra] = [[] for _ in held.chunks]
            hooks = [watch(chunk, kept) for chunk, kept in zip(held.chunks, masks[depth.extra], strict=True)]
            held.step(torch.ones(8, 64), torch.ones(8, 64), nn.functional.mse_loss)
            for hook in hooks:
                hook.remove()

    succeeded(in_regions(2, work))
    first, *others = masks.values()
    assert not torch.equal(first[0][0], first[0][1]), "micro-batches have masks of their own"
    for other in others:
        for outputs, others_outputs in zip(first, other, strict=True):
            assert all(torch.equal(one, two) for one, two in zip(outputs, others_outputs, strict=True))


def test_no_more_activations_are_kept_than_the_schedule_says():
    strategy, kept = Strategy(name="p", kind="pipeline", micro_batches=12), [0, 0, 0]
    model, batches = model_and_batches(steps=1)
    copies = [copy.deepcopy(model) for _ in range(3)]

    def work(rail):
        held = PipelinedModel(copies[rail.region], rail, strategy)
        held.chunks[0].register_forward_hook(
            lambda *_: kept.__setitem__(rail.region, max(kept[rail.region], len(held._kept) + 1))
        )
        held.step(*batches[0], nn.functional.mse_loss)
        return in_flight(order(held.shape, rail.region, held.depth))

    assert succeeded(in_regions(3, work)) == kept == [3, 2, 1]


def test_regions_that_were_given_different_batches_are_told():
    model, batches = model_and_batches(steps=2)

    def work(rail):
        held = PipelinedModel(copy.deepcopy(model), rail, Strategy(name="p", kind="pipeline", micro_batches=4))
        held.step(*batches[rail.region], nn.functional.mse_loss)

    found = in_regions(2, work)
    assert isinstance(found[1], ReplicaMismatchError)
    assert "this batch is not the one of the first region" in str(found[1])


class Twice(nn.Module):
    def forward(self, x):
        return x, x


REFUSED = {
    "an odd batch": ({}, {"samples": 10}, "batch: 10 samples cannot be cut into 4 micro-batches"),
    "a codec of gradients": ({"codec": "int4"}, {}, "strategy.codec: 'int4' does not carry activations"),
    "1f1b with chunks": ({"virtual_stages": 2}, {}, "strategy.virtual_stages: 1f1b has one stage a region"),
    "a block that returns a pair": ({}, {"last": Twice()}, "model: the last block of stage 0 returned tuple"),
    "a block in double": ({}, {"double": True}, "model: the last block of stage 0 returned torch.float64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_by_name(case):
    changes, made, said = REFUSED[case]
    strategy = Strategy(name="p", kind="pipeline", micro_batches=4).model_copy(update=changes)
    first = nn.Linear(5, 12).double() if made.get("double") else nn.Linear(5, 12)
    model = nn.Sequential(first, made.get("last", nn.Identity()), nn.Linear(12, 3))

    def work(rail):
        held = PipelinedModel(copy.deepcopy(model), rail, strategy, cut=[2])
        inputs = torch.randn(made.get("samples", 8), 5, dtype=torch.float64 if made.get("double") else torch.float32)
        held.step(inputs, torch.randn(made.get("samples", 8), 3), nn.functional.mse_loss)

    found = in_regions(2, work)
    refused = [error for error in found if isinstance(error, InputError)]
    assert refused, found
    assert all(str(error).startswith(said) for error in refused), found
    assert all(isinstance(error, InputError | PeerLostError) for error in found), found


def test_a_forward_pass_with_gradients_is_refused():
    model, ((inputs, _),) = model_and_batches(steps=1)
    together = threading.Barrier(2)

    def work(rail):
        with pytest.raises(InputError, match=r"model: a pipeline's gradients come from its schedule"):
            PipelinedModel(copy.deepcopy(model), rail, Strategy(name="p", kind="pipeline"))(inputs)
        together.wait(20)

    succeeded(in_regions(2, work))
