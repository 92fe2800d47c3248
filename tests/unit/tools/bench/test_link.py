"""What `bench link` does with the rates and times of its contestants."""

import pytest
import torch
from support.ranks import FULL_MNIST

from paceline.comm import current_world, run_world
from paceline.errors import WorldError
from paceline.models.mlp import mlp
from paceline.tools.bench.link import PEER, STEPS, make_rows
from paceline.tools.bench.ranks.link import (
    CONTESTANTS,
    LOOK_EVERY,
    Goal,
    bytes_sent,
    load_data,
    measure_accuracy,
    train_to,
)

FOUND = {
    PEER: {"samples_per_s": 50.0, "bytes_per_sample": 8.0, "seconds": 20.0, "accuracy": 0.97},
    "bsp": {"samples_per_s": 100.0, "bytes_per_sample": 4.0, "seconds": 10.0, "accuracy": 0.98},
    "easgd": {"samples_per_s": 300.0, "bytes_per_sample": 1.0, "seconds": 30.0, "accuracy": 0.9},
}


def test_every_contestant_has_three_rows_beside_the_peer():
    rows = list(make_rows("1gbit", 0.97, FOUND))
    assert [(row.case, row.unit, row.ours, row.peers) for row in rows] == [
        ("bsp, 1gbit", "samples/s", 100.0, {PEER: 50.0}),
        ("easgd, 1gbit", "samples/s", 300.0, {PEER: 50.0}),
        ("bsp, 1gbit, bytes per sample", "bytes", 4.0, {PEER: 8.0}),
        ("easgd, 1gbit, bytes per sample", "bytes", 1.0, {PEER: 8.0}),
        ("bsp, 1gbit, time to 97 %", "s", 10.0, {PEER: 20.0}),
        ("easgd, 1gbit, time to 97 %", "s", 30.0, {PEER: 20.0}),
    ]
    assert [row.advantage(PEER) for row in rows[::2]] == [2.0, 2.0, 2.0]


def test_who_has_not_reached_the_target_is_named():
    *_, bsp, easgd = make_rows("1gbit", 0.97, FOUND)
    assert bsp.notes == {"runs": 1, "accuracy": 0.98, "ddp-gloo accuracy": 0.97}
    assert easgd.notes == {**bsp.notes, "accuracy": 0.9, "not reached": "ours"}
    *_, late = make_rows("1gbit", 0.99, FOUND)
    assert late.notes["not reached"] == "ours, ddp-gloo"


def test_a_round_holds_exactly_one_exchange_of_every_rule_with_a_period():
    for name, contestant in CONTESTANTS.items():
        if name.endswith("every 16"):
            rule = contestant.rule
            period = getattr(rule, "every", None) or (rule.push_every, rule.pull_every)
            assert period in (STEPS, (STEPS, STEPS))
    assert LOOK_EVERY % STEPS == 0


def train(name, target, limit_s=60.0):
    """Two ranks among threads; per rank the outcome, and the accuracy of its model afterwards."""
    data = load_data(None)

    def program(world):
        torch.manual_seed(1)
        model = mlp(hidden=(64,))
        goal = Goal(world, data[1], target, limit_s)
        outcome = train_to(goal, CONTESTANTS[name], model, data[0])
        return outcome, measure_accuracy(world, model, data[1])

    return run_world(2, program)


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != PEER])
def test_training_ends_when_its_result_has_reached_the_target(name):
    (first, accuracy), (second, _) = train(name, target=0.85)
    assert first == second, "ranks agree on seconds and accuracy"
    assert 0.85 <= first["accuracy"] == accuracy
    assert 0 < first["seconds"] < 60


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != PEER])
def test_training_goes_on_where_the_replicas_are_better_than_the_result(name):
    class Scripted(Goal):
        looks = 0

        def look(self, model):
            self.looks += 1
            self.accuracy = 0.5 if self.looks == 2 else 1.0

    data = load_data(None)

    def program(world):
        goal = Scripted(world, data[1], 0.9, 60.0)
        return train_to(goal, CONTESTANTS[name], mlp(hidden=(8,)), data[0]), goal.looks

    (outcome, looks), _ = run_world(2, program)
    assert looks == 4, "at the replicas, the result, the replicas again, and their result"
    assert outcome["accuracy"] == 1.0


def test_a_target_out_of_reach_is_given_up_after_the_limit():
    (outcome, _), _ = train("bsp float32", target=1.1, limit_s=0.2)
    assert 0.2 <= outcome["seconds"] < 20
    assert 0 < outcome["accuracy"] < 1.1


def test_time_passes_on_the_slowest_rank_and_only_between_start_and_stop(monkeypatch):
    now = [1.0, 1.0]
    clock = "paceline.tools.bench.ranks.link.perf_counter"
    monkeypatch.setattr(clock, lambda: now[current_world.get().rank])

    def program(world):
        goal = Goal(world, None, 1.0, 60.0)
        for passed, unseen in ((3.0, 50.0), (1.0, 50.0)):
            goal.start()
            now[world.rank] += passed + world.rank
            goal.stop()
            now[world.rank] += unseen
        return goal.seconds

    assert run_world(2, program) == [6.0, 6.0]


def test_bytes_are_read_from_the_interface():
    assert bytes_sent("lo") >= 0
    with pytest.raises(WorldError, match="no interface paceline9"):
        bytes_sent("paceline9")


def test_without_a_place_the_digits_are_the_data():
    assert [len(part) for part in load_data(None)] == [10_000, 2_000]


@pytest.mark.skipif(FULL_MNIST is None, reason="PACELINE_DATA does not say where MNIST lies")
def test_the_full_mnist_is_read_from_its_place():
    assert [len(part) for part in load_data(FULL_MNIST)] == [60_000, 10_000]
