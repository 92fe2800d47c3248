"""The World's contract, and how a world ends, under real mpirun."""

import re
import time

import pytest
from contract.world_checks import CHECKS


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_contract_holds_on_mpi(mpirun, ranks):
    done = mpirun(ranks, "check_world.py", ranks)
    assert done.returncode == 0, done.stderr
    passed = re.findall(r"passed (\w+)", done.stdout)
    assert passed == [check.__name__ for check in CHECKS]


def test_long_buffers_travel_in_pieces(mpirun):
    done = mpirun(3, "check_pieces.py")
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_long_sums_between_nodes(mpirun, ranks):
    done = mpirun(ranks, "piped_sum.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == ranks


@pytest.mark.parametrize("who", ["0", "1", "2", "all"])
def test_an_exception_prints_once_names_rank_and_node_and_ends_all(mpirun, who):
    began = time.monotonic()
    done = mpirun(3, "fail.py", "exception", who, timeout_s=30)
    assert time.monotonic() - began < 15  # starting Python and MPI on a busy machine included
    assert done.returncode == 1
    assert done.stderr.count("ValueError: rank is unwell") == 1
    rank = "0" if who == "all" else who
    assert re.search(rf"paceline: ValueError on rank {rank} \(\S+\); all ranks", done.stderr)


def test_an_error_of_ours_is_one_line_without_traceback(mpirun):
    done = mpirun(2, "fail.py", "paceline", "1", timeout_s=30)
    assert done.returncode == 1
    assert re.search(r"DataError on rank 1 \(\S+\): file x is damaged", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_rank_that_vanishes_ends_the_job_with_its_code(mpirun):
    done = mpirun(2, "fail.py", "exit", "1", timeout_s=30)
    assert done.returncode == 5


def test_a_rank_whose_output_is_closed_ends_the_job_all_the_same(mpirun):
    done = mpirun(2, "fail.py", "closed", "1", timeout_s=30)
    assert done.returncode == 1
    assert "ValueError on rank 1" in done.stderr
