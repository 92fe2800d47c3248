"""The contract of every rule, as one table: a new rule is one line in RULES_UNDER_TEST."""

import dataclasses

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.rules import BSP, RULES, Average, make_rule
from paceline.rules.period import Period

RULES_UNDER_TEST = [BSP(), Average()]

every_rule = pytest.mark.parametrize("rule", RULES_UNDER_TEST, ids=lambda rule: rule.name)


def meet(rule, vectors, weights, in_place=False):
    """One exchange by hand: what the worlds do with messages, done with a sum."""
    contributions = [np.array(vector, dtype=np.float64) for vector in vectors]
    for contribution, weight in zip(contributions, weights, strict=True):
        before = contribution.copy()
        sent = contribution if in_place else np.full_like(contribution, np.nan)
        rule.contribute(contribution, weight, out=sent)
        if not in_place:
            assert contribution.tolist() == before.tolist()
            contribution[:] = sent
    total = np.sum(contributions, axis=0)
    merged = total if in_place else np.full_like(total, np.nan)
    rule.merge(total, sum(weights), out=merged)
    return merged


@every_rule
def test_in_place_is_the_same_as_beside(rule):
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(3, 5))
    for weights in ([1.0, 1.0, 1.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]):
        beside, inside = (meet(rule, vectors, weights, in_place) for in_place in (False, True))
        assert beside.tobytes() == inside.tobytes()


def test_the_table_has_every_rule():
    assert {rule.name for rule in RULES_UNDER_TEST} == set(RULES)


@every_rule
def test_equal_replicas_are_a_fixed_point(rule):
    same = [0.1, -2.0, 3e-8]
    assert meet(rule, [same] * 4, [1.0] * 4).tolist() == same
    assert meet(rule, [same] * 3, [1.0, 0.25, 0.5]) == pytest.approx(same, rel=1e-15)


@every_rule
def test_one_worker_is_plain_training(rule):
    gradient = np.random.default_rng(0).normal(size=1000)
    assert meet(rule, [gradient], [1.0]).tobytes() == gradient.tobytes()


@every_rule
def test_the_mean_over_samples_is_the_invariant(rule):
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(17, 5))  # a gradient per sample
    parts = np.split(samples, [8, 9])  # dealt to three workers: 8, 1 and 8 samples
    merged = meet(rule, [part.mean(axis=0) for part in parts], [len(part) / 8 for part in parts])
    assert merged == pytest.approx(samples.mean(axis=0), rel=1e-12)


@every_rule
def test_a_worker_without_samples_does_not_matter(rule):
    with_idle = meet(rule, [[2.0, 4.0], [0.0, 0.0]], [1.0, 0.0])
    assert with_idle.tolist() == [2.0, 4.0]


@every_rule
def test_nobody_has_samples(rule):
    assert meet(rule, [[0.0], [0.0]], [0.0, 0.0]).tolist() == [0.0]


@every_rule
def test_a_quadratic_converges(rule):
    targets = np.array([[1.0, -1.0], [3.0, 5.0], [2.0, 2.0]])  # each worker pulls to its own
    replicas = np.zeros((3, 2))
    for _ in range(200):
        gradients = replicas - targets
        if rule.meets == "gradients":
            replicas -= 0.1 * meet(rule, gradients, [1.0] * 3)
        else:
            replicas[:] = meet(rule, replicas - 0.1 * gradients, [1.0] * 3)
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
        ("bps", r"rule is 'bps', expected one of: bsp, average\. Did you mean 'bsp'\?"),
        ("nonsense", "expected one of: bsp, average"),
        ({"name": "average", "often": 1}, "has no setting often; it takes: every, start_after"),
        ({"name": "average", "every": 0}, "every is 0, expected epoch, a number of steps, or a"),
        ({"name": "average", "every": "soon"}, "every is 'soon'"),
        ({"name": "average", "every": "0s"}, "every is '0s'"),
        ({"name": "average", "every": True}, "every is True"),
        ({"name": "average", "start_after": -1}, "start_after is -1, expected 0 or more steps"),
        ({"name": "average", "keep_momentum": "no"}, "keep_momentum is 'no'"),
        ({"name": "bsp", "force": 1}, "rule bsp has no setting force; it takes none"),
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
