"""The World's contract, under real mpirun."""

import pytest
from support.world_checks import CHECKS


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_contract_holds_on_mpi(resident, ranks, check):
    """With ranks that stand by, from one up: each call makes a world of just so many."""
    resident(ranks, f"support.world_checks:{check}")


def test_it_is_the_world_of_mpi_that_keeps_the_contract(resident):
    found = resident.on_all(3, "world_programs:identify")
    assert found == [["MPIWorld", rank, 3] for rank in range(3)]


def test_long_buffers_travel_in_pieces_and_long_messages_are_refused(resident):
    resident(3, "world_programs:limit_lengths")


@pytest.mark.parametrize("ranks", [2, 3])
def test_long_sums_between_nodes(resident, ranks):
    assert resident.on_all(ranks, "world_programs:sum_between_nodes") == [6] * ranks
