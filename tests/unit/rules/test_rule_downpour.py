"""Downpour and its answers to staleness, against their formulas written out."""

import numpy as np
import pytest
from support.rule_courses import random_order, set_out

from paceline.rules import Downpour
from paceline.rules.base import PushTerms
from paceline.rules.server_optimizers import make_server_optimizer

WORKERS = 3


def downpour_by_hand(order, gradients, start, lr, push_every, pull_every, divide, count):
    """With the sum of a worker's updates as its push; yields all weights after each step.

    `divide` turns the steps behind a push into what it is divided by, `count` the number of
    updates of the centre since the worker's last pull into what the push is multiplied by.
    """
    centre, replicas = start.copy(), [start.copy() for _ in range(WORKERS)]
    gathered, steps = np.zeros((WORKERS, start.size)), [0] * WORKERS
    behind, seen, updates = [0] * WORKERS, [0] * WORKERS, 0
    for worker in order:
        update = lr * gradients[worker][steps[worker]]
        replicas[worker] = replicas[worker] - update
        gathered[worker] += update
        steps[worker], behind[worker] = steps[worker] + 1, behind[worker] + 1
        pull = steps[worker] % pull_every == 0
        if steps[worker] % push_every == 0:
            counts = count(updates - seen[worker])
            if counts:
                centre = centre - counts * gathered[worker] / divide(behind[worker])
                updates += 1
            gathered[worker], behind[worker] = 0.0, 0
            pull = pull or not counts
        if pull:
            replicas[worker], seen[worker] = centre, updates
        yield np.stack([centre, *replicas])


def as_it_is(number):
    return 1


@pytest.mark.parametrize(("push_every", "pull_every"), [(1, 1), (3, 3), (2, 5), (4, 2)])
@pytest.mark.parametrize(
    ("settings", "divide", "count"),
    [
        ({}, as_it_is, as_it_is),
        ({"staleness": "agn"}, lambda steps: steps, as_it_is),
        ({"staleness": "dynsgd"}, as_it_is, lambda updates: 1 / (updates + 1)),
        ({"max_staleness": 3}, as_it_is, lambda updates: updates <= 3),
        (
            {"staleness": "dynsgd", "max_staleness": 3},
            as_it_is,
            lambda updates: (updates <= 3) / (updates + 1),
        ),
    ],
)
def test_every_step_is_as_written_out(settings, divide, count, push_every, pull_every):
    rng = np.random.default_rng(0)
    order = np.concatenate([random_order(rng) for _ in range(20)])
    gradients, start = rng.normal(size=(WORKERS, 60, 7)), rng.normal(size=7)
    rule = Downpour(push_every=push_every, pull_every=pull_every, **settings)
    course = set_out(rule, start, WORKERS, lr=0.2, pieces=2)
    by_hand = downpour_by_hand(order, gradients, start, 0.2, push_every, pull_every, divide, count)
    for worker, expected in zip(order, by_hand, strict=True):
        course.turn(lambda w, x: gradients[w, course.steps[w]], [worker])
        assert np.stack([course.centre, *course.replicas]) == pytest.approx(expected, abs=1e-13)
    assert ("max_staleness" in settings) == (course.refused[0] > 0)


def test_agn_of_single_steps_is_downpour():
    rng = np.random.default_rng(1)
    plain, divided = (
        set_out(Downpour(staleness=staleness, pull_every=2), np.ones(5), WORKERS)
        for staleness in ("none", "agn")
    )
    for _ in range(20):
        gradients, order = rng.normal(size=(WORKERS, 5)), random_order(rng)
        for course in (plain, divided):
            course.turn(lambda worker, x, gradients=gradients: gradients[worker], order)
    for name, array in plain.arrays().items():
        assert array.tobytes() == divided.arrays()[name].tobytes()


def test_a_pull_alone_never_moves_the_centre():
    rule = Downpour(push_every=3, pull_every=1, server_optimizer="adam")
    course = set_out(rule, np.ones(4), 2)
    for turn in range(1, 10):
        before = {name: array.tobytes() for name, array in course.arrays().items()}
        course.turn(lambda worker, x: x, order=[0])
        after = {name: array.tobytes() for name, array in course.arrays().items()}
        of_centre = [name for name in after if name.startswith("centre")]
        assert len(of_centre) == 4  # with mean, squares and count of adam
        moved = {name for name in of_centre if after[name] != before[name]}
        assert moved == (set(of_centre) if turn % 3 == 0 else set())
    assert course.centre_states[0]["count"].tolist() == [3.0]


def test_steps_taken_while_the_exchange_travels_are_kept_and_pushed():
    rule, rng = Downpour(), np.random.default_rng(2)
    x, others, later = rng.normal(size=(3, 40_000))
    centre, terms, message = x + others, rule.terms(1, 1, 2), np.empty_like(x)
    state = rule.init_worker(x + 0.5)  # half a unit has been done since the last push
    rule.make_push(x, state, terms, out=message)
    at, expected = x.copy(), centre - 0.5
    rule.absorb(message, centre, {}, terms)
    assert np.abs(centre - expected).max() < 1e-14
    x += later
    rule.apply_reply(centre, at, x, state)
    assert np.abs(x - (centre + later)).max() < 1e-14
    rule.make_push(x, state, terms, out=message)
    assert np.abs(message + later).max() < 1e-14  # nothing twice, nothing forgotten


def test_scale():
    assert [Downpour().staleness_weight(s) for s in (0, 9)] == [1.0, 1.0]
    assert [Downpour(staleness="dynsgd").staleness_weight(s) for s in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert [Downpour(max_staleness=2).staleness_weight(s) for s in (2, 3)] == [1.0, 0.0]
    assert Downpour(max_staleness=0, staleness="dynsgd").staleness_weight(1) == 0.0


def test_a_push_counts_by_its_scale_before_the_optimizer():
    rule = Downpour(server_optimizer={"name": "momentum", "lr": 1.0, "momentum": 0.5})
    centre, state = np.array([10.0]), rule.init_centre(1, np.float64)
    rule.absorb(np.array([4.0]), centre, state, PushTerms(scale=0.25))
    assert (centre[0], state["velocity"][0]) == (9.0, 1.0)


def test_due():
    rule = Downpour(push_every=2, pull_every=3)
    expected = {1: (False, False), 2: (True, False), 3: (False, True), 6: (True, True)}
    assert {step: rule.due(step) for step in expected} == expected


@pytest.mark.parametrize("pull_every", [2, 6])
@pytest.mark.parametrize("staleness", ["none", "agn"])
def test_synchronous_pushes_are_averaged_over_samples(pull_every, staleness):
    rng, weights = np.random.default_rng(3), [1.0, 0.5, 2.0]
    gradients, start = rng.normal(size=(WORKERS, 12, 5)), np.ones(5)
    rule = Downpour(
        push_every=2,
        pull_every=pull_every,
        staleness=staleness,
        server_optimizer={"name": "momentum", "lr": 0.5, "momentum": 0.8},
        synchronous=True,
    )
    course = set_out(rule, start, WORKERS, weights)
    centre, velocity, replicas = start.copy(), np.zeros(5), np.tile(start, (WORKERS, 1))
    for step in range(1, 13):
        course.turn(lambda worker, x, step=step: gradients[worker, step - 1])
        replicas -= 0.1 * gradients[:, step - 1]
        if step % 2 == 0:
            pushes = 0.1 * gradients[:, step - 2 : step].sum(axis=1)
            mean = np.average(pushes / (2 if staleness == "agn" else 1), axis=0, weights=weights)
            velocity = 0.8 * velocity + mean
            centre = centre - 0.5 * velocity
        if step % pull_every == 0:
            replicas[:] = centre
        assert course.middle() == pytest.approx(centre, rel=1e-13)
        assert course.replicas == pytest.approx(replicas, rel=1e-13)


def test_float32_stays_float32():
    rule = Downpour(push_every=3, staleness="agn", server_optimizer="adam")
    x = np.ones(3, np.float32)
    centre, state, message = x.copy(), rule.init_worker(x), np.empty_like(x)
    centre_state = rule.init_centre(3, np.float32)
    x -= 0.3
    rule.make_push(x, state, PushTerms(steps=3), out=message)
    assert message == pytest.approx(0.1, rel=1e-6)
    rule.absorb(message, centre, centre_state, PushTerms(scale=0.5))
    rule.apply_reply(centre, x, x, state)
    assert x == pytest.approx(0.999, rel=1e-6)
    arrays = (x, centre, *state.values(), *centre_state.values())
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_optimizer_of_the_centre_is_made_once_not_for_each_push(monkeypatch, synchronous):
    """A push comes in chunks, and others wait for the lock of a chunk meanwhile."""
    made = []

    def make(spec):
        made.append(spec)
        return make_server_optimizer(spec)

    rule = Downpour(server_optimizer="momentum", synchronous=synchronous)
    monkeypatch.setattr("paceline.rules.downpour.make_server_optimizer", make)
    centre = np.ones(2)
    if synchronous:
        carried_out = rule.resolve(lossy=False)
        state = carried_out.init_state(centre)
        for _ in range(5):
            carried_out.merge(np.ones(2), 1.0, centre, state)
    else:
        state = rule.init_centre(2, centre.dtype)
        for _ in range(5):
            rule.absorb(np.ones(2), centre, state, PushTerms())
    assert made == ["momentum"]
