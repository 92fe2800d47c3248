"""Gradients from unequal shares: those of one process with the whole batch, however it is split."""

from collections import Counter
from threading import Condition
from time import sleep

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.data import as_source
from paceline.errors import ConfigError, TrainingError
from paceline.training.balance import BalanceSettings, make_balancer

SENTENCES, WIDTH = 37, 3


def sentences():
    """Of 1 to 12 words, each a vector."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 13, SENTENCES)
    return [torch.from_numpy(rng.normal(size=(n, WIDTH)).astype(np.float32)) for n in lengths]


def build():
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return model


def mean_loss(model, sentence):
    """A mean over its words."""
    return (model(sentence) - 1).pow(2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights(model):
    return torch.cat([p.detach().ravel() for p in model.parameters()]).numpy().copy()


def place(world, nodes):
    if nodes == "each":
        world.node_ranks = (world.rank,)


def on_ranks(ranks, program):
    return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]


def deal_sentences(world, nodes=None, rule="bsp", exchange=None, epochs=2, takes=None, **options):
    """A loop with `deal`; returns the weights and which samples this rank took in each step."""
    place(world, nodes)
    model, data, steps = build(), sentences(), []
    number = {id(sentence): at for at, sentence in enumerate(data)}
    optimizer = sgd(model)
    micro = options.get("micro_batch")
    collate = list if micro else None
    with paceline.keep_pace(model, optimizer, rule, exchange=exchange, world=world):
        dealt = paceline.deal(data, 8, world=world, collate=collate, **options)
        for _ in range(epochs):
            for batch in dealt:
                optimizer.zero_grad()
                own = []
                for item in batch:
                    parts = item if micro else [item]
                    torch.stack([mean_loss(model, one) for one in parts]).mean().backward()
                    own += [number[id(one)] for one in parts]
                    if takes is not None:
                        takes(world, own)
                optimizer.step()
                steps.append(own)
    return weights(model), steps


def one_process(steps, weight_of=lambda at: 1.0):
    """The same steps, of all ranks together, by plain torch."""
    model, data = build(), sentences()
    optimizer = sgd(model)
    for members in zip(*steps, strict=True):
        chosen = [at for own in members for at in own]
        optimizer.zero_grad()
        total = sum(weight_of(at) for at in chosen)
        sum(weight_of(at) * mean_loss(model, data[at]) for at in chosen).div(total).backward()
        optimizer.step()
    return weights(model)


def check_steps(steps, epochs=2, batch=8):
    """Every sample once in every epoch, in steps of the global batch."""
    sizes = [sum(map(len, members)) for members in zip(*steps, strict=True)]
    per_epoch = -(-SENTENCES // batch)
    assert sizes == ([batch] * (SENTENCES // batch) + [SENTENCES % batch]) * epochs
    for epoch in range(epochs):
        part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = [at for own in steps for step in own[part] for at in step]
        assert sorted(seen) == list(range(SENTENCES))


def assert_same(found, expected):
    for one in found:
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("nodes", [None, "each"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_dealt_samples_give_the_gradient_of_all_of_them(ranks, share, nodes):
    found = on_ranks(ranks, lambda w: deal_sentences(w, nodes, exchange={"share": share}))
    steps = [own for _, own in found]
    check_steps(steps)
    assert_same([after for after, _ in found], one_process(steps))


@pytest.mark.parametrize("options", [{"micro_batch": 3}, {"micro_batch": 5, "cost": "length"}])
@pytest.mark.parametrize("ranks", [1, 3])
def test_micro_batches_of_unequal_size_count_by_their_samples(ranks, options):
    found = on_ranks(ranks, lambda w: deal_sentences(w, **options))
    steps = [own for _, own in found]
    check_steps(steps)
    assert_same([after for after, _ in found], one_process(steps))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_weights_say_what_a_dealt_sample_counts(ranks):
    by = np.arange(SENTENCES) % 5  # some count nothing
    found = on_ranks(ranks, lambda w: deal_sentences(w, weight=by.astype(float)))
    # Samples that count nothing are not handed out, so steps are those that the counter dealt.
    expected = one_process([own for _, own in found], lambda at: float(by[at]))
    assert_same([after for after, _ in found], expected)
    assert all(by[at] for _, own in found for step in own for at in step)


def test_the_longest_of_a_step_come_first():
    def program(world):
        return deal_sentences(world, cost="length", epochs=1)

    _, steps = program(SoloWorld())
    lengths = [[len(sentences()[at]) for at in step] for step in steps]
    assert lengths == [sorted(step, reverse=True) for step in lengths]
    _, steps = deal_sentences(SoloWorld(), epochs=1)
    assert any(sorted(step) != step for step in steps)


def test_costs_that_are_learned_bring_the_longest_first_in_the_second_epoch():
    """Nothing is known of the samples; a third of them take sixty times as long as the others."""
    long = np.arange(SENTENCES) % 3 == 0
    model = build()
    optimizer, order = sgd(model), []
    numbers = list(range(SENTENCES))  # without a length
    with paceline.keep_pace(model, optimizer, world=SoloWorld()):
        dealt = paceline.deal(numbers, 8, cost="learned", world=SoloWorld())
        for _ in range(2):
            for batch in dealt:
                optimizer.zero_grad()
                own = []
                for at in batch:
                    sleep(0.06 if long[at] else 0.001)
                    mean_loss(model, torch.ones(1, WIDTH)).backward()
                    own.append(bool(long[at]))
                optimizer.step()
                order.append(own)
    in_order = [own == sorted(own, reverse=True) for own in order]
    half = len(order) // 2
    assert sum(in_order[half:]) >= half - 1 > sum(in_order[:half])


def test_a_slow_rank_takes_less_and_nobody_waits_for_it_to_take_more():
    """Rank 0 holds its first sample of a step until the other has taken all that is left."""
    changed, taken = Condition(), Counter()

    def hold(world, own):
        with changed:
            taken["all"] += 1
            changed.notify_all()
            steps, rest = divmod(taken["all"], SENTENCES)
            end = steps * SENTENCES + min(SENTENCES, -(-rest // 8) * 8)
            assert world.rank or changed.wait_for(lambda: taken["all"] >= end, timeout=60)

    found = run_world(2, lambda w: deal_sentences(w, takes=hold))
    steps = [own for _, own in found]
    check_steps(steps)
    assert max(map(len, steps[0])) <= 1
    assert_same([after for after, _ in found], one_process(steps))


@pytest.mark.parametrize("rule", [{"name": "average", "every": 2}, {"name": "diloco", "every": 2}])
def test_rules_that_merge_weights_deal_too(rule):
    found = run_world(3, lambda w: deal_sentences(w, rule=rule))
    check_steps([own for _, own in found])
    assert len({after.tobytes() for after, _ in found}) == 1
    start = weights(build())
    assert np.abs(found[0][0] - start).max() > 0.01


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 4),
    batch=st.integers(1, 5),
    kind=st.sampled_from(["length", {"power": 2}, "array"]),
    weighing=st.sampled_from([None, "length"]),
    share=st.booleans(),
)
def test_planned_shares_give_the_gradient_of_all_samples(ranks, batch, kind, weighing, share):
    costs = np.arange(SENTENCES) % 7 if kind == "array" else kind

    def program(world):
        model, data, steps = build(), sentences(), []
        number = {id(sentence): at for at, sentence in enumerate(data)}
        optimizer = sgd(model)
        batches = paceline.shard(
            data, batch, cost=costs, weight=weighing, collate=list, world=world
        )
        with paceline.keep_pace(model, optimizer, exchange={"share": share}, world=world):
            for chosen in batches:
                optimizer.zero_grad()
                losses = [mean_loss(model, one) for one in chosen]
                parts = [float(len(one)) if weighing else 1.0 for one in chosen]
                total = sum(part * loss for part, loss in zip(parts, losses, strict=True))
                (total / sum(parts)).backward()
                optimizer.step()
                steps.append([number[id(one)] for one in chosen])
        return weights(model), steps

    found = on_ranks(ranks, program)
    steps = [own for _, own in found]
    seen = sorted(at for own in steps for step in own for at in step)
    assert seen == list(range(SENTENCES))
    lengths = [float(len(one)) for one in sentences()]
    expected = one_process(steps, (lambda at: lengths[at]) if weighing else lambda at: 1.0)
    assert_same([after for after, _ in found], expected)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_sum_over_unequal_parts_is_weighed_by_hand(ranks):
    """Several backwards in a step, of losses that are sums over words."""

    def program(world):
        model, data, steps = build(), sentences(), []
        optimizer = sgd(model)
        with paceline.keep_pace(model, optimizer, world=world) as pace:
            for first in range(0, SENTENCES, 9):
                mine = range(first, min(first + 9, SENTENCES))[world.rank :: world.size]
                optimizer.zero_grad()
                for at in mine:
                    (mean_loss(model, data[at]) * len(data[at])).backward()
                pace.weigh(sum(len(data[at]) for at in mine), reduction="sum")
                optimizer.step()
                steps.append(list(mine))
        return weights(model), steps

    found = on_ranks(ranks, program)
    lengths = [float(len(one)) for one in sentences()]
    expected = one_process([own for _, own in found], lambda at: lengths[at])
    assert_same([after for after, _ in found], expected)


def test_what_cannot_be_dealt_or_weighed_is_refused():
    data = sentences()

    def iterate(world, **options):
        for _ in paceline.deal(data, 8, world=world, **options):
            pass

    def in_block(world, rule="bsp", exchange=None, use=lambda world, pace: iterate(world)):
        model = build()
        optimizer = sgd(model)
        with paceline.keep_pace(model, optimizer, rule, exchange=exchange, world=world) as pace:
            use(world, pace)

    def take_one(world, pace):
        for batch in paceline.deal(data, 8, world=world):
            for _ in batch:
                pass

    def weigh_dealt(world, pace):
        for batch in paceline.deal(data, 8, world=world):
            for _ in batch:
                pace.weigh(3.0)

    def weigh_sum(world, pace):
        pace.weigh(3.0, reduction="sum")

    solo = SoloWorld()
    with pytest.raises(TrainingError, match="outside of a keep_pace block"):
        run_world(2, iterate)
    with pytest.raises(ConfigError, match=r"deal is for rules whose ranks train in step"):
        run_world(2, lambda w: in_block(w, rule="easgd"))
    with pytest.raises(ConfigError, match=r"exchange\.overlap sends gradients after the first"):
        run_world(2, lambda w: in_block(w, exchange={"overlap": True}, use=take_one))
    with pytest.raises(ConfigError, match="collate joins samples to a batch; set micro_batch"):
        paceline.deal(data, 8, collate=list, world=solo)
    with pytest.raises(ConfigError, match="a stream has none"):
        paceline.deal(lambda: iter(data), 8, world=solo)
    with pytest.raises(ConfigError, match="weight is 0 for every sample"):
        paceline.deal(data, 8, weight=np.zeros(SENTENCES), world=solo)
    with pytest.raises(ConfigError, match="reduction is 'max', expected mean or sum"):
        in_block(solo, use=lambda world, pace: pace.weigh(1.0, "max"))
    with pytest.raises(TrainingError, match=r"pace\.weigh\(-1\), expected a number of 0 or more"):
        in_block(solo, use=lambda world, pace: pace.weigh(-1))
    with pytest.raises(TrainingError, match="deal weighs its samples itself"):
        in_block(solo, use=weigh_dealt)
    with pytest.raises(ConfigError, match=r"exchange\.overlap sends them before"):
        run_world(2, lambda w: in_block(w, exchange={"overlap": True}, use=weigh_sum))
    with pytest.raises(ConfigError, match="batch_size is 4 and tokens_per_batch 9"):
        paceline.shard(data, 4, tokens_per_batch=9, world=solo)
    with pytest.raises(ConfigError, match="speeds is 'fast', expected equal or measured"):
        paceline.shard(data, 4, speeds="fast", world=solo)


def test_accumulated_batches_are_numbered_and_measured_one_by_one():
    """New speeds must not reach a batch that another rank has prepared already."""
    costs = np.ones(SENTENCES)
    settings = BalanceSettings(costs, speeds="measured")
    balancer = make_balancer(as_source(sentences()), SoloWorld(), settings, ahead=2)
    balancer.begin_epoch()
    for step in range(4):
        for at in range(3):  # three batches make a step
            balancer.hand_out(np.array([3 * step + at]))
        balancer.note_step(1.5, np.array([1.0 + step]))
    table = balancer.balance.speeds
    assert balancer.speed == pytest.approx(2.0)  # three samples in 1.5 s
    table.note(11, np.array([1.0, 3.0]))
    assert table.at(14) is None or len(table.at(14)) == 1
    assert table.at(15).tolist() == [0.5, 1.5]


@pytest.mark.parametrize("length", [None, 4])
def test_samples_of_one_length_are_learned_one_by_one(length):
    data = list(range(9)) if length is None else [np.zeros((length, 2)) for _ in range(9)]
    balancer = make_balancer(as_source(data), SoloWorld(), BalanceSettings("learned"))
    balancer.begin_epoch()
    for _ in range(3):
        for at in range(9):
            balancer.hand_out(np.array([at]))
            balancer.note_step(5.0 if at == 3 else 1.0, None)
    balancer.learn()
    assert balancer.balance.costs.argmax() == 3


@pytest.mark.parametrize("same_block", [True, False])
def test_steps_after_a_dealt_epoch_are_the_loops_own(same_block):
    """They count as steps without `shard` do, in the same block and in the next."""

    def step_on(model, optimizer, rank, pace):
        optimizer.zero_grad()
        mean_loss(model, torch.full((1, WIDTH), 1.0 + rank)).backward()
        optimizer.step()
        pace.weigh(2.0)
        mean_loss(model, torch.full((1, WIDTH), 3.0)).backward()
        optimizer.step()

    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with paceline.keep_pace(model, optimizer, world=world) as pace:
            for batch in paceline.deal(sentences(), 8, world=world):
                optimizer.zero_grad()
                for sentence in batch:
                    mean_loss(model, sentence).backward()
                optimizer.step()
            before = weights(model)
            if same_block:
                step_on(model, optimizer, world.rank, pace)
        if not same_block:
            with paceline.keep_pace(model, optimizer, world=world) as pace:
                step_on(model, optimizer, world.rank, pace)
        return before, weights(model)

    for before, after in run_world(2, program):
        assert np.abs(after - before).max() > 1e-4
