"""The exchange between regions: the mean, to the last bit the same everywhere, for any number of regions and any codec."""

import threading

import pytest
import torch

from isthmus.runtime.chaos import _FlippedRail
from isthmus.runtime.codecs.coding import encoded_bytes
from isthmus.runtime.codecs.feedback import Draft, ErrorFeedback
from isthmus.runtime.collectives.exchange import Exchange, ExchangeOptions, exchange_mean
from isthmus.runtime.collectives.gather import gather
from isthmus.runtime.environment import Members
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.wan.frames import message_tag
from isthmus.runtime.wan.rail import Rail
from isthmus.runtime.wan.shape import choose_shares


def in_regions(regions, work):
    """`work(rail)` in every region at once, a thread each over real sockets; the results in region order."""
    listed = [{"name": f"r{number}", "rails": [f"127.0.0.1:{port}"]} for number, port in enumerate(free_ports(regions))]
    members, results = Members.model_validate({"regions": listed}), [None] * regions

    def run(region):
        try:
            with Rail.open(members, region, 0, 2, 20.0) as rail:
                results[region] = work(rail)
        except Exception as error:
            results[region] = error

    threads = [threading.Thread(target=run, args=(region,)) for region in range(regions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hung"
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def shard_of(region, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(100 + region))


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4"])
@pytest.mark.parametrize("regions", [1, 2, 3, 4])
def test_all_regions_end_with_the_same_bits_near_the_mean(regions, codec):
    sizes = (100_003, 257, 3, 1, 0)

    def work(rail):
        found, feedback = [], ErrorFeedback()
        for epoch in range(2):
            for number, size in enumerate(sizes):
                shard = shard_of(rail.region, size)
                options = ExchangeOptions(codec=codec, feedback=feedback, first=number * 1_000_000, flow=1)
                exchange_mean(rail, shard, message_tag(number, epoch, 0, 0), options)
                found.append(shard)
        return found

    everyone = in_regions(regions, work)
    assert len({fingerprint(found) for found in everyone}) == 1
    # int4 errs by a seventh of a block's largest value at most, before and after the sum, and once more through the
    # residual of the first round; values reach about 4.5.
    bound = {"none": 1e-6, "bf16": 0.06, "int8": 0.15, "int4": 2.5}[codec] if regions > 1 else 0.0
    for place, shard in enumerate(everyone[0]):
        mean = sum(shard_of(region, sizes[place % 5]) for region in range(regions)) / regions
        assert shard.numel() == 0 or float((shard - mean).abs().max()) <= bound


def test_who_adds_up_how_much_does_not_change_a_bit():
    def work(rail):
        found = []
        chosen = choose_shares([[0, 9, 1], [9, 0, 4], [1, 4, 0]])
        for number, shares in enumerate((None, (0.2, 0.6, 0.2), (0.0, 1.0, 0.0), chosen)):
            shard = shard_of(rail.region, 70_001)
            exchange_mean(rail, shard, message_tag(number, 0, 0, 0), ExchangeOptions(shares=shares))
            found.append(fingerprint([shard]))
        return found

    assert len({found for everyone in in_regions(3, work) for found in everyone}) == 1


def test_near_regions_add_up_a_half_each_and_far_ones_all_with_the_same_bits(monkeypatch):
    def work(rail):
        found = []
        for number, rtt_s in enumerate((0.0, 10.0)):
            monkeypatch.setattr(Rail, "agreed_rtt_s", lambda *_, rtt_s=rtt_s: rtt_s)
            gather(rail, torch.zeros(1), 99 + number)  # both rails look at the same number
            for out in (None, torch.empty(100_003)):
                shard = shard_of(rail.region, 100_003)
                tag = message_tag(number, 0 if out is None else 1, 0, 0)
                exchange = Exchange(rail, shard, tag, ExchangeOptions(flow=1), out)
                exchange.start()
                assert exchange.passes == 2 - number
                exchange.reduce()
                exchange.finish()
                found.append(shard if out is None else out)
            gather(rail, torch.zeros(1), 199 + number)
        return found

    mean = ((shard_of(0, 100_003) + shard_of(1, 100_003)) * 0.5).numpy()
    for found in in_regions(2, work):
        for result in found:
            assert (result.numpy() == mean).all()


@pytest.mark.parametrize("codec", ["none", "int8", "int4"])
@pytest.mark.parametrize("regions", [2, 3, 4])
@pytest.mark.parametrize("byte", [None, 3, 703])
def test_a_bit_that_turns_over_after_the_checks_shows_in_the_replicas_or_in_the_tally(regions, codec, byte):
    def work(rail):
        rail.proves = True
        shard, out = shard_of(rail.region, 8_192), torch.empty(8_192)
        used = rail if byte is None or rail.region else _FlippedRail(rail, byte)
        exchange_mean(used, shard, message_tag(0, 0, 0, 0), ExchangeOptions(codec=codec), out)
        rail.flush()
        return fingerprint([out]), rail.take_tally()

    digests, tallies = zip(*in_regions(regions, work), strict=True)
    assert (len(set(digests)) == 1 and sum(tallies) % 2**64 == 0) == (byte is None)
    if byte is not None and regions > 2:
        assert sum(tallies) % 2**64, "what everybody agrees on is wrong, and only the tally can tell"


@pytest.mark.parametrize("regions", [2, 3])
def test_error_feedback_makes_the_mean_of_many_rounds_exact(regions):
    # The same shards every round: what one round leaves out, the next ones bring; the average error falls as 1 / rounds.
    rounds = 30

    def work(rail):
        feedback, total = ErrorFeedback(), torch.zeros(1000)
        for epoch in range(rounds):
            shard = shard_of(rail.region, 1000)
            exchange_mean(rail, shard, message_tag(0, epoch, 0, 0), ExchangeOptions(codec="int4", feedback=feedback))
            total += shard
        return total / rounds

    mean = sum(shard_of(region, 1000) for region in range(regions)) / regions
    for total in in_regions(regions, work):
        assert float((total - mean).abs().max()) < 3.0 / rounds


@pytest.mark.parametrize("regions", [2, 3])
def test_regions_may_weigh_differently(regions):
    weights = (3.0, 1.0, 0.0)[:regions]

    def work(rail):
        shard = shard_of(rail.region, 5001)
        exchange_mean(rail, shard, 0, ExchangeOptions(weights=weights))
        return shard

    found = in_regions(regions, work)
    expected = (3 * shard_of(0, 5001) + shard_of(1, 5001)) / 4
    assert len({fingerprint([shard]) for shard in found}) == 1
    assert torch.allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize(("regions", "factor"), [(2, 1.0), (3, 4 / 3), (4, 1.5)])
@pytest.mark.parametrize("codec", ["none", "int4"])
def test_a_region_sends_what_the_formula_says(regions, factor, codec):
    # S for two regions; 2 (R - 1) / R S for more: every part but the own goes out, and the own one (R - 1) times.
    size = 256 * 12 * 100

    def work(rail):
        exchange_mean(rail, shard_of(rail.region, size), 0, ExchangeOptions(codec=codec))
        rail.flush()
        return sum(use.payload_bytes_sent for use in rail.counters().values())

    assert in_regions(regions, work) == [round(factor * encoded_bytes(codec, size))] * regions


def test_gather_brings_every_region_s_values_in_order():
    found = in_regions(3, lambda rail: torch.stack(gather(rail, torch.tensor([rail.region, 7], dtype=torch.int64), 5)).tolist())
    assert found == [[[0, 7], [1, 7], [2, 7]]] * 3


def test_a_missing_weight_is_refused():
    def work(rail):
        with pytest.raises(ValueError, match="1 weights for 2 regions"):
            exchange_mean(rail, torch.zeros(4), 0, ExchangeOptions(weights=(1.0,)))

    in_regions(2, work)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_what_is_owed_and_what_arrived_add_up_to_what_was_given_while_regions_come_and_go(codec):
    # sum(x) + sum(owed before) = R mean + sum(owed after): in every round, also when R changes between rounds, because
    # residuals mean the same for any number of regions. A region that is absent keeps what it owes.
    size, feedbacks, turn = 1003, [ErrorFeedback() for _ in range(4)], iter(range(100))

    def owed():
        return sum(feedback.residual(0, size).double() for feedback in feedbacks)

    for regions in (2, 3, 4, 3, 2):
        before, epoch = owed(), next(turn)

        def work(rail, epoch=epoch):
            mean, shard = torch.empty(size), shard_of(rail.region + 10 * epoch, size)
            exchange_mean(rail, shard, 0, ExchangeOptions(codec=codec, feedback=feedbacks[rail.region]), mean)
            return mean

        means = in_regions(regions, work)
        assert len({fingerprint([mean]) for mean in means}) == 1
        given_ = sum(shard_of(region + 10 * epoch, size).double() for region in range(regions))
        torch.testing.assert_close(given_ + before, regions * means[0].double() + owed(), rtol=0, atol=2e-5)
    assert float(owed().abs().max()) > 1e-4


@pytest.mark.parametrize("regions", [2, 3])
def test_an_attempt_that_is_dropped_leaves_no_trace(regions):
    # The same round once, and after an attempt whose draft and result were thrown away: the same bits, of both.
    def once(feedback, rail, tag):
        draft, mean, shard = Draft(feedback), torch.empty(700), shard_of(rail.region, 700)
        exchange_mean(rail, shard, tag, ExchangeOptions(codec="int4", feedback=draft), mean)
        assert torch.equal(shard, shard_of(rail.region, 700))
        return mean, draft

    def work(rail, attempts):
        feedback, found = ErrorFeedback(), []
        for epoch in range(3):
            for attempt in range(attempts):
                mean, draft = once(feedback, rail, message_tag(0, 10 * epoch + attempt, 0, 0))
            draft.commit()
            found += [mean, feedback.residual(0, 700).clone()]
        return fingerprint(found)

    assert in_regions(regions, lambda rail: work(rail, 1)) == in_regions(regions, lambda rail: work(rail, 3))
