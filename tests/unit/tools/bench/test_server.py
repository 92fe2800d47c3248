"""What the ranks of `bench server` check before they tell a figure."""

import pytest

from paceline.comm import run_world
from paceline.errors import WorldError
from paceline.tools.bench import server
from paceline.tools.bench.ranks.server import array_sizes, check_exchanges

REPLICAS = {0: [0.9, 1.0], 1: [1.1, 1.2], 2: []}
"""By rank; the last one is the server."""


@pytest.mark.parametrize("parameters", [1_000_000, 25_000_000])
def test_a_model_has_twenty_arrays_and_as_many_parameters_as_it_says(parameters):
    sizes = array_sizes(parameters)
    assert (len(sizes), sum(sizes)) == (20, parameters)
    assert min(sizes) >= 1
    assert max(sizes) > 5 * min(sizes[::2]), "of differing sizes"


@pytest.mark.parametrize(
    ("centre", "problem"),
    [
        ([1.0, 0.8], None),
        ([1.0, 0.9], "add up to 3.0 .. 3.1, expected 3"),
        ([0.9, 0.8], r"add up to 2.9 .. 3.0\d*, expected 3"),
    ],
)
def test_exchanges_that_lose_or_gain_something_are_not_measured(centre, problem):
    def program(world):
        check_exchanges(world, REPLICAS[world.rank], centre)

    if problem is None:
        run_world(3, program)
    else:
        with pytest.raises(WorldError, match=problem):
            run_world(3, program)


def test_exchanges_that_move_nothing_are_not_measured():
    unmoved = {0: [1.0], 1: [2.0], 2: []}
    with pytest.raises(WorldError, match=r"the centre has moved from 0 to 0\.0"):
        run_world(3, lambda world: check_exchanges(world, unmoved[world.rank], [0.0]))


def test_the_sizes_are_those_of_the_promise():
    assert list(server.EXCHANGES) == [1_000_000, 25_000_000]
