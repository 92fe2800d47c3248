"""Costs learned from times: of samples with lengths, and of samples that nothing is known of."""

import numpy as np
import pytest

from paceline.data.sampling.learned import LengthModel, SampleModel, fit_nonnegative

SAMPLES = 600


def lengths():
    rng = np.random.default_rng(0)
    return np.clip(np.round(rng.lognormal(np.log(20) - 0.245, 0.7, SAMPLES)), 1, 200)


def train(models, costs, batch, epochs=1, noise=0.05, overhead=0.001):
    """Let models, one on each rank, see all samples; the costs they agree on."""
    rng = np.random.default_rng(2)
    for _ in range(epochs):
        order = rng.permutation(SAMPLES)
        sizes = rng.integers(max(1, batch // 2), 1 + batch * 3 // 2, SAMPLES)
        for step, own in enumerate(np.split(order, np.cumsum(sizes))):
            if not len(own):
                break
            seconds = (overhead + costs[own].sum()) * rng.normal(1, noise)
            models[step % len(models)].note(own, seconds)
        total = sum(model.sums() for model in models)
        found = [model.fit(total) for model in models]
        assert all((one == found[0]).all() for one in found)
    return found[0]


def error(found, costs):
    return np.abs(found / found.mean() - costs / costs.mean()).mean()


@pytest.mark.parametrize(
    "cost_of",
    [lambda n: 0.001 * n, lambda n: 1e-5 * n**2, lambda n: 0.002 + 1e-4 * n + 1e-5 * n**2],
    ids=["linear", "square", "mixed"],
)
def test_a_polynomial_of_the_length_is_found_in_one_epoch(cost_of):
    long = lengths()
    found = train([LengthModel(long), LengthModel(long)], cost_of(long), batch=4)
    assert error(found, cost_of(long)) < 0.12
    assert error(long, 1e-5 * long**2) > 0.4  # where the guess began


def test_where_batches_are_padded_their_longest_sample_counts():
    long, rng = lengths(), np.random.default_rng(4)
    plain, padded = LengthModel(long), LengthModel(long, padded=True)
    for _ in range(300):
        own = rng.choice(SAMPLES, rng.integers(2, 7), replace=False)
        for model in (plain, padded):
            model.note(own, 0.001 * len(own) * long[own].max())
    found = [error(model.fit(model.sums()), long) for model in (plain, padded)]
    assert found[1] < 0.02 < found[0]


def test_samples_of_which_nothing_is_known_are_found_one_by_one():
    costs = 0.001 * lengths()
    models = [SampleModel(SAMPLES), SampleModel(SAMPLES), SampleModel(SAMPLES)]
    assert error(train(models, costs, batch=1, overhead=0.0), costs) < 0.1


def test_in_batches_they_get_better_with_every_epoch():
    costs = 0.001 * lengths()
    errors = [
        error(train([SampleModel(SAMPLES)], costs, batch=4, epochs=epochs), costs)
        for epochs in (1, 8, 30)
    ]
    assert errors[0] > 1.3 * errors[1] > 1.3 * errors[2]


@pytest.mark.parametrize("model", [LengthModel(lengths()), SampleModel(SAMPLES)])
def test_nothing_is_learned_from_nothing(model):
    assert model.fit(model.sums()) is None


def test_a_pause_is_not_taken_for_work():
    costs = 0.001 * lengths()
    for model in (LengthModel(lengths()), SampleModel(SAMPLES)):
        train([model], costs, batch=1)
        model.note(np.array([7]), 3600.0)
        for number in range(SAMPLES):
            model.note(np.array([number]), costs[number])
        assert error(model.fit(model.sums()), costs) < 0.02


def test_coefficients_are_never_negative():
    rng = np.random.default_rng(3)
    for _ in range(50):
        rows, right = rng.normal(size=(20, 4)), rng.normal(size=20)
        found = fit_nonnegative(rows.T @ rows, rows.T @ right)
        assert (found >= 0).all()
        best = np.sum((rows @ found - right) ** 2)
        for _ in range(20):
            other = np.maximum(found + rng.normal(size=4) * 0.1, 0)
            assert best <= np.sum((rows @ other - right) ** 2) + 1e-9
