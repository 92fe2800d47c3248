"""Elastic averaging, against its formulas written out."""

import numpy as np
import pytest
from support.rule_courses import random_order, set_out

from paceline.rules import EASGD
from paceline.rules.base import PushTerms

WORKERS = 3


def easgd_by_hand(order, gradients, start, every, lr, force):
    """Algorithm 1 of the paper, with the old x on both lines; yields all weights after each step.

    Here the exchange follows the step, so that a worker's first one comes after `every` steps.
    """
    centre, replicas = start.copy(), [start.copy() for _ in range(WORKERS)]
    steps = [0] * WORKERS
    for worker in order:
        x = replicas[worker] - lr * gradients[worker][steps[worker]]
        steps[worker] += 1
        if steps[worker] % every == 0:
            a = force(steps[worker])
            difference = x - centre
            x = x - a * difference
            centre = centre + a * difference
        replicas[worker] = x
        yield np.stack([centre, *replicas])


@pytest.mark.parametrize(
    ("settings", "force"),
    [
        ({}, lambda step: 0.9 / WORKERS),
        ({"beta": 0.6}, lambda step: 0.6 / WORKERS),
        ({"force": 0.4}, lambda step: 0.4),
        (
            {"force": 0.5, "final_force": 0.1, "final_after": 20},
            lambda step: 0.5 - 0.4 * min(step, 20) / 20,
        ),
        (
            {"final_force": 0.8, "final_after": 10},
            lambda step: 0.3 + 0.5 * min(step, 10) / 10,
        ),
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_every_step_is_as_written_in_the_paper(settings, force, pieces):
    rng = np.random.default_rng(0)
    order = np.concatenate([random_order(rng) for _ in range(20)])
    gradients, start = rng.normal(size=(WORKERS, 60, 7)), rng.normal(size=7)
    course = set_out(EASGD(every=3, **settings), start, WORKERS, lr=0.2, pieces=pieces)
    by_hand = easgd_by_hand(order, gradients, start, 3, 0.2, force)
    for worker, expected in zip(order, by_hand, strict=True):
        course.turn(lambda w, x: gradients[w, course.steps[w]], [worker])
        assert np.stack([course.centre, *course.replicas]) == pytest.approx(expected, abs=1e-13)


def exchange(rule, x, c, later=0.0):
    """One exchange, during which the worker moves on by `later`."""
    terms, message, at = rule.terms(step=1, steps=1, workers=4), np.empty_like(x), x.copy()
    rule.make_push(x, {}, terms, out=message)
    rule.absorb(message, c, {}, terms)
    x += later
    rule.apply_reply(message, at, x, {})


def test_replica_plus_centre_is_conserved():
    rng = np.random.default_rng(1)
    x, c = rng.uniform(-1, 1, size=(2, 10_000))
    before = x + c
    exchange(EASGD(every=1), x, c)
    assert np.abs(x + c - before).max() <= 1e-15


def test_steps_taken_while_the_exchange_travels_are_kept():
    rng = np.random.default_rng(2)
    (x, c), later = rng.normal(size=(2, 50)), rng.normal(size=50)
    waiting, centre = x.copy(), c.copy()
    exchange(EASGD(), x, c, later)
    exchange(EASGD(), waiting, centre)
    assert x == pytest.approx(waiting + later, abs=1e-15)
    assert c.tobytes() == centre.tobytes()


def test_what_is_answered_is_the_move():
    sent, centre = np.array([4.0]), np.array([0.0])
    EASGD().absorb(sent, centre, {}, PushTerms(force=0.25))
    assert (sent[0], centre[0]) == (1.0, 1.0)
    assert EASGD.reply_kind == "move"


def meet_at_once(rule, replicas, centre, meetings=1, weights=None):
    """Synchronous exchanges of workers that do not move in between."""
    course = set_out(rule, centre, len(replicas), weights, lr=1.0)
    course.replicas[:] = replicas
    for _ in range(meetings):
        course.turn(lambda worker, x: np.zeros_like(x))
    return course


def test_a_synchronous_centre_stays_at_the_mean_of_the_replicas():
    # Adding up what should be averaged, an old implementation came to 1.675 here.
    course = meet_at_once(EASGD(every=1, synchronous=True), [[0.5], [1.5], [0.25], [1.75]], [1.0])
    assert course.middle().tolist() == [1.0]
    assert course.replicas[:, 0] == pytest.approx([0.6125, 1.3875, 0.41875, 1.58125], rel=1e-15)


def test_a_synchronous_centre_moves_to_the_mean_by_beta():
    replicas = np.random.default_rng(3).normal(size=(4, 6))
    rule = EASGD(every=1, beta=0.8, synchronous=True)
    course = meet_at_once(rule, replicas, np.ones(6), weights=[1.0, 0.5, 0.0, 0.5])
    # Each worker counts alike, whatever its samples.
    assert course.middle() == pytest.approx(0.2 + 0.8 * replicas.mean(axis=0), rel=1e-14)
    assert course.replicas == pytest.approx(replicas - 0.2 * (replicas - 1.0), rel=1e-14)


def test_a_synchronous_exchange_conserves_the_sum_of_all():
    replicas = np.random.default_rng(4).normal(size=(3, 100))
    course = meet_at_once(EASGD(every=1, synchronous=True), replicas, np.ones(100), meetings=5)
    after = course.replicas.sum(axis=0) + course.middle()
    assert after == pytest.approx(replicas.sum(axis=0) + 1.0, abs=1e-14)


def test_a_synchronous_schedule_counts_steps():
    rule = EASGD(every=5, force=0.5, final_force=0.1, final_after=20, synchronous=True)
    course = set_out(rule, [0.0], 1, lr=1.0)
    expected = 0.0
    for force in (0.4, 0.3, 0.2, 0.1, 0.1):  # after 5, 10, 15, 20 and 25 steps
        course.replicas[:] = 1.0
        for _ in range(5):
            course.turn(lambda worker, x: np.zeros_like(x))
        expected += force * (1.0 - expected)
        assert course.middle() == pytest.approx([expected], rel=1e-14)


def test_only_a_synchronous_rule_is_carried_out_by_another():
    assert EASGD(synchronous=True, every=7).resolve(lossy=False).every == 7
    rule = EASGD()
    assert rule.resolve(lossy=True) is rule


def test_float32_stays_float32():
    x, c = np.full(3, 4.0, np.float32), np.zeros(3, np.float32)
    exchange(EASGD(), x, c)
    assert x == pytest.approx(4.0 - 0.9, rel=1e-6)
    assert x.dtype == c.dtype == np.float32
