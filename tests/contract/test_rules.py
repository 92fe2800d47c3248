"""The contract of every rule, as one table: a new rule is one line in RULES_UNDER_TEST."""

import dataclasses

import numpy as np
import pytest
import torch

from paceline.errors import ConfigError
from paceline.rules import BSP, RULES, Average, DiLoCo, make_rule
from paceline.rules.period import Period

RULES_UNDER_TEST = [BSP(), Average(), DiLoCo()]
AS_PLAIN_TRAINING = [BSP(), Average(), DiLoCo(outer_lr=1.0, outer_momentum=0.0)]
"""Settings with which one worker is as if alone, and many take the mean."""

every_rule = pytest.mark.parametrize("rule", RULES_UNDER_TEST, ids=lambda rule: rule.name)
every_plain_rule = pytest.mark.parametrize("rule", AS_PLAIN_TRAINING, ids=lambda rule: rule.name)


def meet(rule, vectors, weights, in_place=False, start=None):
    """One exchange by hand: what the worlds do with messages, done with a sum.

    The vectors are gradients or replicas, as the rule has it; replicas set out from `start`.
    """
    vectors = [np.array(vector, dtype=np.float64) for vector in vectors]
    if rule.meets == "gradients":
        return meet_with_gradients(rule, vectors, weights, in_place)
    states = [rule.begin(vectors[0] if start is None else start) for _ in vectors]
    sent = [np.full_like(vector, np.nan) for vector in vectors]
    for vector, state, weight, out in zip(vectors, states, weights, sent, strict=True):
        before = vector.copy()
        rule.contribute(vector, state, weight, out=out)
        assert vector.tolist() == before.tolist()
    for vector, state in zip(vectors, states, strict=True):
        rule.merge(np.sum(sent, axis=0), sum(weights), vector, state)
        assert vector.tobytes() == vectors[0].tobytes()  # all workers agree
        centre = rule.centre(state)
        assert centre is None or centre.tobytes() == vector.tobytes()
    return vectors[0]


def meet_with_gradients(rule, vectors, weights, in_place):
    for vector, weight in zip(vectors, weights, strict=True):
        sent = vector if in_place else np.full_like(vector, np.nan)
        rule.contribute(vector, weight, out=sent)
        vector[:] = sent
    total = np.sum(vectors, axis=0)
    merged = total if in_place else np.full_like(total, np.nan)
    rule.merge(total, sum(weights), out=merged)
    return merged


def test_gradients_in_place_are_the_same_as_beside():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(3, 5))
    for weights in ([1.0, 1.0, 1.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]):
        beside, inside = (meet(BSP(), vectors, weights, in_place) for in_place in (False, True))
        assert beside.tobytes() == inside.tobytes()


def test_the_table_has_every_rule():
    assert {rule.name for rule in RULES_UNDER_TEST} == set(RULES)


@every_rule
def test_equal_replicas_are_a_fixed_point(rule):
    same = [0.1, -2.0, 3e-8]
    assert meet(rule, [same] * 4, [1.0] * 4).tolist() == same
    assert meet(rule, [same] * 3, [1.0, 0.25, 0.5]) == pytest.approx(same, rel=1e-15)


@every_plain_rule
def test_one_worker_is_plain_training(rule):
    start, vector = np.random.default_rng(0).normal(size=(2, 1000))
    merged = meet(rule, [vector], [1.0], start=start)
    assert merged == pytest.approx(vector, rel=1e-12)
    if rule.name != "diloco":  # which goes there by a difference
        assert merged.tobytes() == vector.tobytes()


@every_plain_rule
def test_the_mean_over_samples_is_the_invariant(rule):
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(17, 5))  # a gradient per sample
    parts = np.split(samples, [8, 9])  # dealt to three workers: 8, 1 and 8 samples
    means = [part.mean(axis=0) for part in parts]
    merged = meet(rule, means, [len(part) / 8 for part in parts], start=np.ones(5))
    assert merged == pytest.approx(samples.mean(axis=0), rel=1e-12)


@every_plain_rule
def test_a_worker_without_samples_does_not_matter(rule):
    with_idle = meet(rule, [[2.0, 4.0], [0.0, 0.0]], [1.0, 0.0], start=np.zeros(2))
    assert with_idle.tolist() == [2.0, 4.0]


@every_rule
def test_nobody_has_samples(rule):
    assert meet(rule, [[0.0], [0.0]], [0.0, 0.0]).tolist() == [0.0]


def test_diloco_is_nesterov_sgd_on_the_averaged_difference():
    rule = DiLoCo(outer_lr=0.5, outer_momentum=0.8)
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    outer = torch.optim.SGD([parameter], lr=0.5, momentum=0.8, nesterov=True)
    state = rule.begin(parameter.detach().numpy())
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


def test_every_setting_of_diloco_matters():
    def course(**settings):
        rule = DiLoCo(**settings)
        state = rule.begin(np.zeros(1))
        x = np.empty(1)
        for _ in range(3):
            rule.merge(state["centre"] - 1.0, 1.0, x, state)
        return float(x[0])

    assert len({course(), course(outer_lr=0.3), course(outer_momentum=0.5)}) == 3


@every_rule
def test_a_quadratic_converges(rule):
    targets = np.array([[1.0, -1.0], [3.0, 5.0], [2.0, 2.0]])  # each worker pulls to its own
    replicas = np.zeros((3, 2))
    for _ in range(200):
        gradients = replicas - targets
        if rule.meets == "gradients":
            replicas -= 0.1 * meet(rule, gradients, [1.0] * 3)
        else:
            start = replicas[0].copy()
            replicas[:] = meet(rule, replicas - 0.1 * gradients, [1.0] * 3, start=start)
    assert replicas == pytest.approx(np.tile(targets.mean(axis=0), (3, 1)), abs=1e-8)


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
        ("bps", r"rule is 'bps', expected one of: bsp, average, diloco\. Did you mean 'bsp'\?"),
        ("nonsense", "expected one of: bsp, average"),
        (
            {"name": "bsp", "what": "losses"},
            "what is 'losses', expected one of: gradients, weights",
        ),
        ({"name": "bsp", "every": 4}, "which are averaged in every step; set rule.what=weights"),
        ({"name": "bsp", "what": "weights", "every": 0}, "every is 0, expected a whole number"),
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
        ({"name": "bsp", "force": 1}, "rule bsp has no setting force; it takes: what, every"),
        ({"force": 1}, "expected a name"),
        (7, "rule is 7"),
    ],
)
def test_a_wrong_rule_is_named_with_the_valid_ones(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_rule(spec)


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
