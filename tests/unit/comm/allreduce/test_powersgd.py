"""Sums of matrices by their factors: what they may leave out for a while, and what never."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

from paceline.comm import run_world
from paceline.comm.allreduce.powersgd import PowerSGDAllreduce, multiply, orthonormalise
from paceline.core.vectors import Layout

SHAPES = {"weight": (30, 40), "kernel": (16, 3, 5, 5), "bias": (30,), "flat": (4, 3), "scale": ()}
FACTORED = ("weight", "kernel")

every_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])
every_size = pytest.mark.parametrize("ranks", [2, 3, 4])


def layout_of(dtype, shapes=SHAPES):
    return Layout.of((name, shape, np.dtype(dtype).name) for name, shape in shapes.items())


def gradient(layout, seed, rank=None):
    """A random gradient; with a rank, its matrices have that one."""
    rng, vector = np.random.default_rng(seed), layout.empty_vector()
    for entry, view in zip(layout.entries, layout.views(vector), strict=True):
        rows = entry.shape[0] if entry.shape else 1
        matrix = view.reshape(rows, entry.size // max(rows, 1))
        if rank is None:
            matrix[:] = rng.normal(size=matrix.shape)
        else:
            left, right = (rng.normal(size=(n, rank)) for n in matrix.shape)
            matrix[:] = left @ right.T
    return vector


def distance(found, wanted):
    return float(np.abs(found - wanted).max(initial=0))


def sum_up(ranks, layout, rank, given):
    """For each rank: the sums of what is given, turn by turn, the bytes of one, and its error."""

    def program(world):
        power, sums = PowerSGDAllreduce(world, layout, rank), []
        for vectors in given:
            vector = vectors[world.rank].copy()
            sent = power.all_reduce(vector)
            sums.append(vector)
        return np.array(sums), sent, power.error

    return run_world(ranks, program)


def gradients(layout, ranks, turns=1, rank=None):
    return [[gradient(layout, [turn, at], rank) for at in range(ranks)] for turn in range(turns)]


def parts(layout, vector, factored):
    named = zip(SHAPES, layout.views(vector), strict=True)
    return np.concatenate([view.ravel() for name, view in named if (name in FACTORED) == factored])


@every_type
@every_size
def test_a_sum_of_low_rank_comes_whole(dtype, ranks):
    layout = layout_of(dtype)
    given = gradients(layout, ranks, rank=2)
    exact = np.sum(given[0], axis=0)
    near = 1e-5 if dtype == np.float32 else 1e-12
    for sums, _, error in sum_up(ranks, layout, 2 * ranks, given):
        assert distance(sums[0], exact) < near * np.abs(exact).max()
        assert np.abs(error).max() < near * np.abs(exact).max()


@every_type
def test_with_full_rank_every_parameter_travels_as_it_is(dtype):
    layout = layout_of(dtype)
    given = gradients(layout, 3)
    exact = given[0][0] + given[0][1] + given[0][2]
    for sums, _, error in sum_up(3, layout, 30, given):
        assert sums[0].tobytes() == exact.tobytes()
        assert not error.any()


@every_type
@every_size
def test_what_has_no_use_for_factors_travels_exactly(dtype, ranks):
    layout = layout_of(dtype)
    given = gradients(layout, ranks, turns=3)
    results = sum_up(ranks, layout, 2, given)
    for turn, vectors in enumerate(given):
        exact = vectors[0].copy()
        for vector in vectors[1:]:
            exact += vector
        for sums, _, _ in results:
            found, wanted = (parts(layout, v, factored=False) for v in (sums[turn], exact))
            assert found.tobytes() == wanted.tobytes()
            assert distance(parts(layout, sums[turn], True), parts(layout, exact, True)) > 1


@every_type
@every_size
def test_nothing_is_lost(dtype, ranks):
    """What all gave is what came out and what the errors hold; the last rank gives nothing."""
    layout, turns = layout_of(dtype), 6
    given = gradients(layout, ranks, turns)
    for vectors in given[2:]:
        vectors[-1][:] = 0  # it has no samples left, but still something to give
    results = sum_up(ranks, layout, 2, given)
    left = np.sum([error for _, _, error in results], axis=0)
    near = 1e-4 if dtype == np.float32 else 1e-12
    came = results[0][0].sum(axis=0)
    assert distance(came + left, np.sum(given, axis=(0, 1))) < near
    assert np.abs(left).max() > 1


@every_type
@every_size
def test_all_ranks_hold_the_same_bits_and_a_run_repeats(dtype, ranks):
    layout = layout_of(dtype)
    given = gradients(layout, ranks, turns=4)
    results = sum_up(ranks, layout, 3, given) + sum_up(ranks, layout, 3, given)
    for sums, _, _ in results:
        assert sums.dtype == dtype
        assert sums.tobytes() == results[0][0].tobytes()
    errors = [error for _, _, error in results]
    assert errors[0].tobytes() == errors[ranks].tobytes() != errors[1].tobytes()


@every_type
def test_gaps_between_parameters_stay_zero(dtype):
    layout = layout_of(dtype)
    gaps = np.ones(layout.size, bool)
    for entry in layout.entries:
        gaps[entry.offset : entry.offset + entry.size] = False
    sums, _, error = sum_up(2, layout, 2, gradients(layout, 2))[0]
    assert gaps.any()
    assert not sums[0][gaps].any()
    assert not error[gaps].any()


@every_size
def test_a_constant_gradient_comes_in_the_end(ranks):
    """The mean of N sums is nearer to the gradient, the larger N is."""
    layout, turns = layout_of(np.float64), 60
    given = gradients(layout, ranks) * turns
    exact = np.sum(given[0], axis=0)
    sums = sum_up(ranks, layout, 2, given)[0][0]
    once, early, late = (
        np.linalg.norm(sums[:n].mean(axis=0) - exact) / np.linalg.norm(exact) for n in (1, 20, 60)
    )
    assert once > 0.8
    assert early < 0.5
    assert late < early / 2


def test_factors_are_those_of_the_sum_before():
    """So without feedback a gradient that stays is met ever better, up to its best factors."""
    rng = np.random.default_rng(0)
    layout = layout_of(np.float64, {"weight": (50, 60)})
    spectrum = 0.8 ** np.arange(50)
    left, right = (np.linalg.qr(rng.normal(size=(n, 50)))[0] for n in (50, 60))
    matrix = left * spectrum @ right.T
    best = np.linalg.norm(spectrum[3:])

    def program(world):
        power, distances = PowerSGDAllreduce(world, layout, 3), []
        for _ in range(12):
            vector = layout.gather([matrix / 2], layout.empty_vector())
            power.all_reduce(vector)
            power.error[:] = 0
            distances.append(np.linalg.norm(layout.views(vector)[0] - matrix))
        return distances

    distances = run_world(2, program)[0]
    assert distances[0] > 1.1 * best
    assert distances[-1] == pytest.approx(best, rel=1e-3)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(distances))


@every_type
def test_a_quadratic_converges(dtype):
    """Each rank is drawn to its own target; together they end in the middle."""
    layout = layout_of(dtype)
    targets = [gradient(layout, [7, at]) for at in range(3)]
    middle = np.mean(targets, axis=0)

    def program(world):
        power, x = PowerSGDAllreduce(world, layout, 2), layout.empty_vector()
        for _ in range(250):
            vector = x - targets[world.rank]
            power.all_reduce(vector)
            x -= dtype(0.1 / 3) * vector
        return x

    results = run_world(3, program)
    assert distance(results[0], middle) < 1e-2
    assert len({x.tobytes() for x in results}) == 1


def test_bytes_are_those_that_go_to_others():
    """Of 128 x 256 numbers and a bias, two factors of rank 4 and the bias."""
    layout = layout_of(np.float32, {"weight": (128, 256), "bias": (128,)})
    for ranks in (2, 4):
        numbers = 4 * (128 + 256) + 128
        for _, sent, _ in sum_up(ranks, layout, 4, gradients(layout, ranks)):
            assert sent == 2 * (ranks - 1) * 4 * numbers // ranks
    assert numbers < layout.size / 19


def test_alone_nothing_changes():
    layout = layout_of(np.float32)
    given = gradients(layout, 1)
    ((sums, sent, error),) = sum_up(1, layout, 2, given)
    assert sums[0].tobytes() == given[0][0].tobytes()
    assert sent == 0
    assert not error.any()


@pytest.mark.parametrize("shapes", [{"bias": (9,)}, {"weight": (40, 50)}, {"none": (0, 8)}])
def test_models_of_one_kind(shapes):
    layout = layout_of(np.float64, shapes)
    given = gradients(layout, 2, turns=2)
    results = sum_up(2, layout, 3, given)
    left = np.sum([error for _, _, error in results], axis=0)
    assert distance(results[0][0].sum(axis=0) + left, np.sum(given, axis=(0, 1))) < 1e-12


@every_type
def test_a_parameter_without_a_gradient_does_not_lose_its_factors(dtype):
    """Zeros first (a frozen start, say): the gradients after them come all the same."""
    layout = layout_of(dtype)
    given = gradients(layout, 2, rank=1) * 3
    given = [[np.zeros_like(v) for v in given[0]]] * 2 + given
    sums, _, error = sum_up(2, layout, 4, given)[0]
    exact = np.sum(given, axis=(0, 1))
    assert not sums[:2].any()
    assert distance(sums.sum(axis=0), exact) < 1e-3 * np.abs(exact).max()
    assert np.isfinite(error).all()


@every_type
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_number_reaches_everybody_and_does_not_stay(dtype, broken):
    layout = layout_of(dtype)
    given = gradients(layout, 3, turns=4)
    layout.views(given[1][1])[0][20, 7] = broken

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = sum_up(3, layout, 2, given)
    for sums, _, error in results:
        weights = [layout.views(vector)[0] for vector in sums]
        assert [np.isfinite(weight).all() for weight in weights] == [True, False, True, True]
        assert not np.isfinite(weights[1][20, 7])
        assert np.isfinite(layout.views(sums[1])[1]).all()  # other parameters are as they were
        assert np.isfinite(error).all()
        for turn in (0, 2, 3):
            assert sums[turn].tobytes() == results[0][0][turn].tobytes()


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(n, t) for n in (1e-30, 1.0, 1e30) for t in (np.float32, np.float64)]
    + [(1e-200, np.float64), (1e200, np.float64)],
)
def test_an_orthonormal_basis_of_what_the_rows_span(size, dtype):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5, 300))
    basis = (rows * size * 10.0 ** rng.uniform(-3, 3, (5, 1))).astype(dtype)
    orthonormalise(basis)
    near = 5e-8 if dtype == np.float32 else 1e-14
    wide = basis.astype(float)
    assert distance(wide @ wide.T, np.eye(5)) < near
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert distance(unit @ wide.T @ wide, unit) < 10 * near


@every_type
@pytest.mark.parametrize(
    "rows",
    [np.zeros((3, 6)), np.ones((3, 6)), np.eye(3, 6)[[1, 1, 0]], np.eye(1, 6, 5), np.eye(4, 5)],
)
def test_rows_that_span_less_are_completed(dtype, rows):
    basis = rows.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        orthonormalise(basis)
    wide = basis.astype(float)
    assert distance(wide @ wide.T, np.eye(len(rows))) < 1e-6
    assert distance(rows @ wide.T @ wide, rows) < 1e-5


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_has_no_basis(broken):
    rows = np.ones((2, 5))
    rows[0, 3] = broken
    with np.errstate(invalid="ignore"):
        orthonormalise(rows)
    assert not np.isfinite(rows).all(axis=1).any()


@every_type
@pytest.mark.parametrize(
    ("rank", "rows", "columns"), [(1, 7, 9), (4, 300, 500), (2, 3, 70_000), (8, 1000, 250)]
)
def test_a_product_is_rounded_in_one_order(dtype, rank, rows, columns):
    """Element by element, one outer product after another; BLAS may fuse, or take another one."""
    rng = np.random.default_rng(4)
    left = rng.normal(size=(rank, rows)).astype(dtype)
    right = rng.normal(size=(rank, columns)).astype(dtype)
    expected = left[0][:, None] * right[0]
    for column, row in zip(left[1:], right[1:], strict=True):
        expected = expected + column[:, None] * row
    out = np.full((rows, columns), np.nan, dtype)
    multiply(left, right, out)
    assert out.tobytes() == expected.tobytes()
    assert distance(out, left.T @ right) < 1e-4
