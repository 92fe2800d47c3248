"""The contract of every rule, as one table: a new rule is one line in RULES_UNDER_TEST."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.rule_courses import random_order, set_out

from paceline.core.quantities import Period
from paceline.errors import ConfigError
from paceline.rules import (
    BSP,
    EASGD,
    RULES,
    Average,
    CentreRule,
    DiLoCo,
    Downpour,
    Gossip,
    GradientRule,
    make_rule,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOWMO = make_rule({"name": f"{EXAMPLES}/own_rules.py:SlowMo", "every": 2})
DAMPED = make_rule({"name": f"{EXAMPLES}/own_rules.py:DampedPush", "every": 2})
RULES_UNDER_TEST = [
    BSP(),
    Average(every=2),
    DiLoCo(every=2),
    EASGD(every=2),
    EASGD(every=2, synchronous=True),
    Downpour(),
    Downpour(push_every=2, pull_every=4, synchronous=True),
    Gossip(probability=0.5),
    SLOWMO,
    DAMPED,
]
TAKE_THE_MEAN = [
    BSP(),
    Average(every=1),
    Average(every=1).resolve(lossy=True),
    DiLoCo(every=1, outer_lr=1.0, outer_momentum=0.0),
    Downpour(synchronous=True),
]
"""Settings with which one exchange ends in the mean over samples."""
PLAIN_ALONE = [
    *TAKE_THE_MEAN,
    Downpour(),
    Downpour(push_every=3, pull_every=2),
    Downpour(push_every=2, pull_every=4, synchronous=True),
    EASGD(),
    EASGD(synchronous=True),
    Gossip(),
]
WITH_MORE_STATE = [
    Average(every=2).resolve(lossy=True),
    EASGD(every=2, final_force=0.1, final_after=30),
    EASGD(every=2, final_force=0.1, final_after=30, synchronous=True),
    Downpour(push_every=2, pull_every=3, staleness="agn"),
    Downpour(pull_every=2, staleness="dynsgd", max_staleness=4),
    *(Downpour(server_optimizer=name) for name in ("momentum", "adagrad", "rmsprop")),
    Downpour(server_optimizer="adadelta", synchronous=True),
    Downpour(server_optimizer="adam", push_every=2, pull_every=6, synchronous=True),
]
CARRIED_OUT_BY_THE_EXCHANGE = {"start_after", "keep_momentum", "fragments"}
"""Settings that no method of the rule reads; the tests of the exchange see them."""
TARGETS = np.array([[1.0, -1.0], [3.0, 5.0], [2.0, 2.0]])
"""Each worker is drawn to its own; the mean is 2, 2."""


def describe(rule):
    given = [f for f in dataclasses.fields(rule) if getattr(rule, f.name) != f.default]
    return "-".join([rule.name, *(f"{f.name}={getattr(rule, f.name)}" for f in given)])


every_rule = pytest.mark.parametrize("rule", RULES_UNDER_TEST, ids=describe)
every_mean = pytest.mark.parametrize("rule", TAKE_THE_MEAN, ids=describe)


def is_synchronous(rule):
    return rule.resolve(lossy=False).exchange_kind in ("gradients", "weights")


def meet(rule, vectors, weights, start=None):
    """Where workers end who went from `start` to these vectors and exchanged once."""
    vectors = np.asarray(vectors, dtype=np.float64)
    start = np.zeros_like(vectors[0]) if start is None else start
    course = set_out(rule, start, len(vectors), weights, lr=1.0)
    course.turn(lambda worker, x: x - vectors[worker])
    assert len({replica.tobytes() for replica in course.replicas}) == 1
    assert course.middle() == pytest.approx(course.replicas[0], rel=1e-15)
    return course.replicas[0]


def follow(rule, turns=24, **more):
    """Where three workers are after each turn of a random course that is the same for all rules."""
    rng = np.random.default_rng(5)
    gradients, course = rng.normal(size=(3, 200, 4)), set_out(rule, np.ones(4), 3, **more)
    trace = []
    for _ in range(turns):
        course.turn(lambda worker, x: gradients[worker, course.steps[worker]], random_order(rng))
        trace.append(np.concatenate([course.middle(), *course.replicas]))
    return course, np.array(trace)


@pytest.mark.parametrize("kind", [GradientRule, type(BSP())])
def test_accumulating_is_contributing_and_adding(kind):
    """The shared-memory path sums by `accumulate`; a faster one gives the same bits."""
    rng = np.random.default_rng(2)
    for dtype in (np.float32, np.float64):
        for weights in ([1.0, 1.0], [1.0, 1.0, 0.25], [0.5, 1.0, 0.0, 2.0]):
            gradients = [rng.normal(size=37).astype(dtype) for _ in weights]
            ours, plain = np.empty(37, dtype), np.empty(37, dtype)
            kind.accumulate(BSP(), gradients, weights, out=ours)
            plain[:] = 0
            for gradient, weight in zip(gradients, weights, strict=True):
                part = np.empty_like(plain)
                BSP().contribute(gradient, weight, out=part)
                plain += part
            assert ours.tobytes() == plain.tobytes()


def test_the_table_has_every_rule():
    assert {rule.name for rule in RULES_UNDER_TEST} == {*RULES, "SlowMo", "DampedPush"}


@every_rule
def test_equal_replicas_are_a_fixed_point(rule):
    same = [0.1, -2.0, 3e-8]
    for weights in ([1.0] * 4, [1.0, 0.25, 0.5, 1.0]):
        course = set_out(rule, same, 4, weights)
        for _ in range(12):
            course.turn(lambda worker, x: np.zeros(3), order=[0, 1, 1, 2, 3])
        exact = weights == [1.0] * 4 or not is_synchronous(rule)
        for vector in (*course.replicas, course.middle()):
            assert vector == pytest.approx(same, rel=0.0 if exact else 1e-14, abs=0.0)


@pytest.mark.parametrize("rule", PLAIN_ALONE, ids=describe)
def test_one_worker_is_plain_training(rule):
    if isinstance(rule, EASGD | Gossip):
        assert rule.resolve(lossy=False).trivial_alone
        pytest.skip("a rank alone does not exchange by this rule: see the tests of training")
    gradients = np.random.default_rng(0).normal(size=(12, 1000))
    course, plain = set_out(rule, np.ones(1000), 1), np.ones(1000)
    for gradient in gradients:
        course.turn(lambda worker, x, gradient=gradient: gradient)
        plain -= 0.1 * gradient
    for vector in (course.replicas[0], course.middle()):
        assert vector == pytest.approx(plain, abs=1e-14)
    if rule in (BSP(), Average(every=1)):  # the others go there by a difference
        assert course.replicas[0].tobytes() == plain.tobytes()


@every_mean
def test_the_mean_over_samples_is_the_invariant(rule):
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(17, 5))  # a gradient per sample
    parts = np.split(samples, [8, 9])  # sharded to three workers: 8, 1 and 8 samples
    means = [part.mean(axis=0) for part in parts]
    merged = meet(rule, means, [len(part) / 8 for part in parts], start=np.ones(5))
    assert merged == pytest.approx(samples.mean(axis=0), rel=1e-12)


@every_mean
def test_a_worker_without_samples_does_not_matter(rule):
    assert meet(rule, [[2.0, 4.0], [0.0, 0.0]], [1.0, 0.0]).tolist() == [2.0, 4.0]


@every_mean
def test_nobody_has_samples(rule):
    assert meet(rule, [[0.0], [0.0]], [0.0, 0.0]).tolist() == [0.0]


def test_gradients_in_place_are_the_same_as_beside():
    rng = np.random.default_rng(2)
    for weight in (1.0, 0.5, 0.0):
        vector = rng.normal(size=5)
        beside = np.full(5, np.nan)
        BSP().contribute(vector, weight, out=beside)
        BSP().contribute(vector, weight, out=vector)
        assert vector.tobytes() == beside.tobytes()
        BSP().merge(vector, weight, out=beside)
        BSP().merge(vector, weight, out=vector)
        assert vector.tobytes() == beside.tobytes()


@every_rule
def test_a_quadratic_converges(rule):
    def gradient(worker, x):
        return x - TARGETS[worker]

    if is_synchronous(rule):
        course = set_out(rule, np.zeros(2), 3)
        for _ in range(400):
            course.turn(gradient)
        assert course.middle() == pytest.approx([2.0, 2.0], abs=1e-8)
        return
    # How near the middle, and each replica, is in the last 100 turns; it begins 2 away.
    near, within = {
        "easgd": (0.1, 0.3),
        "downpour": (0.05, 0.2),
        "gossip": (0.6, 1.6),
        "DampedPush": (0.2, 0.4),
    }[rule.name]
    rng, course = np.random.default_rng(6), set_out(rule, np.zeros(2), 3, lr=0.01)
    for turn in range(800):
        course.turn(gradient, random_order(rng))
        if turn >= 700:
            assert course.middle() == pytest.approx([2.0, 2.0], abs=near)
            assert np.abs(course.replicas - 2.0).max() < within


LIVE = {
    "bsp": [],
    "average": [{"every": 2}, {"every": 3}],
    "diloco": [{"every": 2}, {"every": 2, "outer_lr": 0.3}, {"every": 2, "outer_momentum": 0.5}],
    "easgd": [
        {"every": 3},
        {"force": 0.25},
        {"beta": 0.5},
        {"beta": 0.5, "every": 3},
        {"final_force": 0.1, "final_after": 40},
        {"final_force": 0.2, "final_after": 40},
        {"final_force": 0.1, "final_after": 20},
        {"synchronous": True},
        {"synchronous": True, "final_force": 0.1, "final_after": 20},
    ],
    "downpour": [
        {"push_every": 2},
        {"pull_every": 3},
        {"push_every": 2, "staleness": "agn"},
        {"staleness": "dynsgd"},
        {"max_staleness": 1},
        {"synchronous": True},
        {"synchronous": True, "push_every": 2, "pull_every": 4},
        {"synchronous": True, "push_every": 2, "pull_every": 4, "staleness": "agn"},
        *(
            {"server_optimizer": name, "synchronous": synchronous}
            for name in ("momentum", "adagrad", "adadelta", "rmsprop", "adam")
            for synchronous in (False, True)
        ),
        {"server_optimizer": {"name": "sgd", "lr": 0.5}},
    ],
    "gossip": [{"probability": 0.3}],
}


@pytest.mark.parametrize("name", RULES)
def test_every_setting_matters(name):
    fields = {field.name for field in dataclasses.fields(RULES[name])}
    assert fields - CARRIED_OUT_BY_THE_EXCHANGE == {
        setting for case in LIVE[name] for setting in case
    }
    traces = [follow(make_rule({"name": name, **case}))[1].tobytes() for case in ({}, *LIVE[name])]
    assert len(set(traces)) == len(traces)


@pytest.mark.parametrize("rule", [*RULES_UNDER_TEST, *WITH_MORE_STATE], ids=describe)
def test_a_course_goes_on_from_what_was_saved(rule, tmp_path):
    rng = np.random.default_rng(5)
    course, _ = follow(rule, turns=11)
    with (tmp_path / "saved.npz").open("wb") as file:
        np.savez(file, **course.arrays())
    other = set_out(rule, np.zeros(4), 3)
    with np.load(tmp_path / "saved.npz") as saved:
        other.load(saved)
    for _ in range(13):
        gradients, order = rng.normal(size=(3, 4)), random_order(rng)
        for each in (course, other):
            each.turn(lambda worker, x, gradients=gradients: gradients[worker], order)
    for name, array in course.arrays().items():
        assert array.tobytes() == other.arrays()[name].tobytes(), name


def test_diloco_is_nesterov_sgd_on_the_averaged_difference():
    rule = DiLoCo(outer_lr=0.5, outer_momentum=0.8)
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    outer = torch.optim.SGD([parameter], lr=0.5, momentum=0.8, nesterov=True)
    state = rule.init_state(parameter.detach().numpy())
    rng = np.random.default_rng(3)
    for _ in range(5):
        replicas, weights = rng.normal(size=(3, 2)), [1.0, 0.5, 2.0]
        sent = [np.empty(2) for _ in replicas]
        for replica, weight, out in zip(replicas, weights, sent, strict=True):
            rule.contribute(replica, state, weight, out)
        difference = np.average(state["centre"] - replicas, axis=0, weights=weights)
        rule.merge(np.sum(sent, axis=0), sum(weights), replicas[0], state)
        parameter.grad = torch.from_numpy(difference)
        outer.step()
        assert replicas[0] == pytest.approx(parameter.detach().numpy(), rel=1e-12)


def test_diloco_without_an_outer_optimizer_is_averaging():
    plain = DiLoCo(every=3, outer_lr=1.0, outer_momentum=0.0)
    replicas, averaged = (follow(rule)[1][:, 4:] for rule in (plain, Average(every=3)))
    assert replicas == pytest.approx(averaged, abs=1e-14)


@every_rule
def test_rules_are_frozen_and_carry_formula_and_paper(rule):
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.name_of_nothing = 1
    assert "<-" in type(rule).__doc__
    assert "doi" in type(rule).__doc__ or "arXiv" in type(rule).__doc__


@pytest.mark.parametrize("spec", ["bsp", {"name": "bsp"}, BSP()])
def test_a_rule_is_made_from_name_mapping_or_itself(spec):
    assert make_rule(spec) == BSP()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "bps",
            "rule is 'bps', expected one of: bsp, average, diloco, easgd, downpour, gossip. "
            "Did you mean 'bsp'?",
        ),
        ("nonsense", "expected one of: bsp, average"),
        (
            {"name": "bsp", "what": "weights"},
            "rule bsp has no setting what; it takes none. Did you mean rule average, which",
        ),
        ({"name": "bsp", "wire": "int8"}, "has no setting wire; it takes none. Did you mean exch"),
        ({"name": "easgd", "servers": 1}, "Did you mean exchange.servers?"),
        ("own.py:Rule", "there is no file own.py"),
        (f"{EXAMPLES}/own_rules.py:Slow", "has no function 'Slow'; it has"),
        (f"{EXAMPLES}/own_rules.py:State", "own_rules.py:State is no rule: derive a class from"),
        ("paceline.rules:WeightRule", "rule paceline.rules:WeightRule is no dataclass"),
        (
            {"name": f"{EXAMPLES}/own_rules.py:SlowMo", "gamma": 1},
            "rule SlowMo has no setting gamma; it takes: every, alpha, beta",
        ),
        ({"name": "diloco", "outer_lr": 0}, "outer_lr is 0, expected 0 < outer_lr"),
        ({"name": "diloco", "outer_momentum": 1.0}, "is 1.0, expected 0 <= outer_momentum < 1"),
        ({"name": "diloco", "fragments": 0}, "fragments is 0, expected a whole number of 1"),
        ({"name": "average", "often": 1}, "has no setting often; it takes: every, start_after"),
        ({"name": "average", "every": 0}, "every is 0, expected epoch, a number of steps, or a"),
        ({"name": "average", "every": "soon"}, "every is 'soon'"),
        ({"name": "average", "every": "0s"}, "every is '0s'"),
        ({"name": "average", "every": True}, "every is True"),
        ({"name": "average", "start_after": -1}, "start_after is -1, expected a whole number of 0"),
        ({"name": "average", "keep_momentum": "no"}, "keep_momentum is 'no'"),
        ({"name": "bsp", "force": 1}, "rule bsp has no setting force; it takes none"),
        ({"force": 1}, "expected a name"),
        (7, "rule is 7"),
        (
            {"name": "easgd", "force": 2},
            "rule.force is 2, expected 0 < force < 1. Try 0.9 / workers",
        ),
        ({"name": "easgd", "force": "much"}, "rule.force is 'much', expected 0 < force < 1"),
        ({"name": "easgd", "beta": 1.5}, "rule.beta is 1.5, expected 0 < beta <= 1"),
        ({"name": "easgd", "beta": 0}, "rule.beta is 0, expected 0 < beta <= 1"),
        ({"name": "easgd", "force": 0.5, "beta": 0.9}, "force is 0.5 and rule.beta 0.9, expected"),
        ({"name": "easgd", "every": 0}, "rule.every is 0, expected a whole number of 1"),
        ({"name": "easgd", "every": "epoch"}, "rule.every is 'epoch', expected a whole number"),
        ({"name": "easgd", "final_force": 0.1}, "final_after None, expected both or neither"),
        ({"name": "easgd", "final_after": 9}, "final_force is None and rule.final_after 9"),
        (
            {"name": "easgd", "final_force": 1, "final_after": 9},
            "rule.final_force is 1, expected 0 < final_force < 1",
        ),
        (
            {"name": "easgd", "final_force": 0.1, "final_after": 0},
            "final_after is 0, expected a whole number of 1",
        ),
        ({"name": "easgd", "synchronous": 1}, "synchronous is 1, expected true or false"),
        ({"name": "downpour", "push_every": 0}, "push_every is 0, expected a whole number of 1"),
        ({"name": "downpour", "pull_every": 0}, "pull_every is 0, expected a whole number of 1"),
        (
            {"name": "downpour", "staleness": "old"},
            "staleness is 'old', expected one of: none, agn, dynsgd",
        ),
        ({"name": "downpour", "max_staleness": -1}, "max_staleness is -1, expected a whole"),
        (
            {"name": "downpour", "server_optimizer": "lamb"},
            "rule.server_optimizer is 'lamb', expected one of: sgd, momentum, adagrad, adadelta, "
            "rmsprop, adam",
        ),
        ({"name": "downpour", "server_optimizer": {"lr": 1}}, "rule.server_optimizer is None"),
        ({"name": "downpour", "server_optimizer": 3}, "rule.server_optimizer is 3, expected one"),
        (
            {"name": "downpour", "server_optimizer": {"name": "sgd", "momentum": 0.9}},
            "rule.server_optimizer sgd has no setting momentum; it takes: lr",
        ),
        (
            {"name": "downpour", "server_optimizer": {"name": "adam", "beta2": 1.0}},
            "rule.server_optimizer.beta2 is 1.0, expected 0 <= server_optimizer.beta2 < 1",
        ),
        (
            {"name": "downpour", "server_optimizer": {"name": "adam", "lr": 0}},
            "rule.server_optimizer.lr is 0, expected 0 < server_optimizer.lr",
        ),
        (
            {"name": "downpour", "synchronous": True, "staleness": "dynsgd", "max_staleness": 0},
            "is true and rule.staleness, rule.max_staleness set, which has no effect",
        ),
        (
            {"name": "downpour", "synchronous": True, "push_every": 2, "pull_every": 3},
            "pull_every is 3 and rule.push_every 2, expected a multiple of it",
        ),
        ({"name": "gossip", "probability": 0}, "probability is 0, expected 0 < probability <= 1"),
        ({"name": "gossip", "probability": 1.1}, "probability is 1.1"),
        ({"name": "gossip", "probability": True}, "probability is True"),
    ],
)
def test_a_wrong_rule_is_named_with_the_valid_ones(spec, message):
    with pytest.raises(ConfigError) as caught:
        make_rule(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("every", "steps", "seconds", "over"),
    [
        ("epoch", 10**6, 10**6, False),
        (4, 3, 10**6, False),
        (4, 4, 0.0, True),
        ("10s", 10**6, 9.9, False),
        ("10s", 1, 10.0, True),
        ("1.5m", 1, 90.0, True),
        ("1h", 1, 3599.0, False),
    ],
)
def test_periods(every, steps, seconds, over):
    assert Period.parse(every).is_over(steps, seconds) == over


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES_UNDER_TEST if isinstance(rule, CentreRule)], ids=describe
)
def test_a_trade_in_one_go_is_the_three_steps_of_an_exchange(rule):
    rng = np.random.default_rng(3)
    replica, centre = rng.normal(size=(2, 70_001)).astype(np.float32)
    terms = rule.terms(step=10, steps=10, workers=3)
    apart, apart_centre, message = replica.copy(), centre.copy(), np.empty_like(replica)
    move = np.empty_like(replica)
    if not rule.exchange_in_place(replica, centre, terms, move):
        assert replica.tobytes() == apart.tobytes()
        assert centre.tobytes() == apart_centre.tobytes()
        return
    rule.make_push(apart, {}, terms, message)
    rule.absorb(message, apart_centre, {}, terms)
    rule.apply_reply(message, apart, apart, {})
    for found, expected in ((replica, apart), (centre, apart_centre), (move, message)):
        assert found.tobytes() == expected.tobytes()
