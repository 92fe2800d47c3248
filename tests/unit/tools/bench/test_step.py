"""`bench step`: rounds, groups and rows; what the ranks do, on ranks that are threads."""

import threading

import pytest
import torch

from paceline.cluster.memory import read_memory
from paceline.comm import run_world
from paceline.rules import EASGD, RULES, Average, Gossip, make_rule
from paceline.tools.bench import step
from paceline.tools.bench.ranks import timing
from paceline.tools.bench.ranks.step import (
    NETWORKS,
    Learner,
    RoundPlan,
    count_steps,
    group_rules,
    plan_round,
    time_alone,
    time_steps,
    vector_bytes,
)

GB = 2**30


class Counter:
    """A learner that only counts."""

    def __init__(self):
        self.steps = 0
        self.rests = 0

    def train(self, steps):
        self.steps += steps

    def rest(self):
        self.rests += 1


def test_a_row_per_rule_has_the_peers_of_its_rounds():
    seconds = {"one": 0.001, "limit": 0.002, "ddp-gloo": 0.004, "bsp": 0.003, "easgd": 0.0025}
    notes = {"bsp": {"steps": 5}, "easgd": {"steps": 10}}
    bsp, easgd = step.make_rows("mlp", ", 4 ranks", {"seconds": seconds, "notes": notes})
    assert (bsp.case, bsp.unit, bsp.ours) == ("mlp, bsp, 4 ranks", "ms", 3.0)
    assert bsp.peers == easgd.peers == {"one": 1.0, "limit": 2.0, "ddp-gloo": 4.0}
    assert (easgd.ours, easgd.notes) == (2.5, {"steps": 10})


def test_every_network_that_can_be_named_can_be_trained():
    assert tuple(NETWORKS) == step.NETWORKS
    assert set(step.QUICK_NETWORKS) <= set(step.NETWORKS)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "alexnet"])
def test_a_learner_trains_on_its_batch(name):
    learner = Learner(NETWORKS[name], rank=0)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    learner.train(1)
    after = list(learner.model.parameters())
    assert all((a != b).any() for a, b in zip(after, before, strict=True))
    assert all(parameter.grad is not None for parameter in after)
    learner.rest()
    assert all(parameter.grad is None for parameter in after)


def test_ranks_have_the_same_network_and_batches_of_their_own():
    first, second = (Learner(NETWORKS["linear"], rank) for rank in (0, 1))
    assert torch.equal(first.model.weight, second.model.weight)
    assert not torch.equal(first._inputs, second._inputs)


@pytest.mark.parametrize(
    ("rule", "steps", "planned", "meets"),
    [
        ("bsp", 7, 7, "1"),
        ("downpour", 7, 7, "1"),
        (EASGD(every=10), 1, 10, "10"),
        (EASGD(every=10), 21, 30, "10"),
        (Gossip(probability=0.25), 9, 12, "4"),
        ("diloco", 7, 7, "500, not timed"),
        ("diloco", 600, 1000, "500"),
        ("average", 7, 7, "epoch, not timed"),
        (Average(every=8), 7, 8, "8"),
    ],
)
def test_a_round_holds_whole_periods(rule, steps, planned, meets):
    notes = plan_round(make_rule(rule), steps).notes()
    assert notes == {"steps": planned, "exchanges every": meets}


def test_every_rule_can_be_planned():
    plans = [plan_round(make_rule(name), 4) for name in RULES]
    assert all(isinstance(plan, RoundPlan) and plan.steps >= 4 for plan in plans)


@pytest.mark.parametrize(("free", "sizes"), [(100, [6]), (16, [3, 3]), (1, [1] * 6)])
def test_rules_that_run_together_fit_into_memory(free, sizes):
    rules = [make_rule(name) for name in RULES]
    groups = group_rules(rules, copies_bytes=GB // 2, free_bytes=free * GB)
    assert [len(group) for group in groups] == sizes
    assert [rule for group in groups for rule in group] == rules


def test_memory_is_read_in_bytes():
    assert 2**26 < read_memory()[1] < 2**50
    assert vector_bytes(torch.nn.Linear(500, 500)) == 4 * (500 * 500 + 500)


def test_alone_means_that_rank_0_trains_and_all_know_the_time():
    def program(world):
        learner = Counter()
        return time_alone(world, learner, 5), learner.steps, learner.rests

    found = run_world(3, program)
    assert [steps for _, steps, _ in found] == [5, 0, 0]
    assert found[0][2] == 1
    assert found[0][0] > 0
    assert len({seconds for seconds, _, _ in found}) == 1


def test_together_means_that_all_train():
    def program(world):
        learner = Counter()
        return time_steps(world, learner, 5), learner.steps, learner.rests

    found = run_world(3, program)
    assert [(steps, rests) for _, steps, rests in found] == [(5, 1)] * 3
    assert len({seconds for seconds, _, _ in found}) == 1


@pytest.mark.parametrize(("round_s", "steps"), [(0.0, 3), (0.1, 10)])
def test_a_round_takes_about_as_long_as_asked_for(monkeypatch, round_s, steps):
    """Each rank's clock shows what it has done: 10 ms a step."""
    now = threading.local()

    class Worker:
        def train(self, steps):
            now.s = getattr(now, "s", 0.0) + 0.01 * steps

        def rest(self):
            pass

    monkeypatch.setattr(timing, "perf_counter", lambda: now.s)
    assert run_world(2, lambda world: count_steps(world, Worker(), round_s)) == [steps] * 2
