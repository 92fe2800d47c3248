"""torch.distributed on the backend mpi4py, under real mpirun."""

import re

import pytest


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_gives_what_was_computed_alone(mpirun, ranks):
    done = mpirun(ranks, "torch_backend_collectives.py", timeout_s=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == ranks
    assert done.stdout.count("passed check_") >= 20


def test_tensors_of_a_device_go_through_the_host_or_to_an_mpi_that_takes_them(mpirun):
    done = mpirun(2, "torch_backend_far.py", timeout_s=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") >= 20
    assert done.stdout.count("exposed 6") == 2
    assert len(re.findall(r"MPI was asked: True (True|False)", done.stdout)) == 2


def test_ddp_trains_as_on_gloo_in_all_its_modes(mpirun):
    done = mpirun(2, "torch_backend_ddp.py", timeout_s=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed") == 7
    assert done.stdout.count("DONE") == 2


def test_groups_and_messages_among_each_other_leave_nothing(mpirun):
    done = mpirun(3, "torch_backend_stress.py", 700, timeout_s=110)  # 2,100 all-reduces
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE 700 rounds") == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_sums_over_three_groups_leave_nothing(mpirun):
    done = mpirun(3, "torch_backend_stress.py", 3400, timeout_s=590)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE 3400 rounds") == 3


def test_who_is_late_is_named_with_operation_and_number(mpirun):
    done = mpirun(3, "torch_backend_endings.py", "late")
    assert done.stdout.count("DONE") == 3, done.stderr
    assert done.returncode == 3
    who = "rank 0 got: rank 0 of 3 in group '0', "
    assert who + "monitored_barrier, number 2: no sign of rank 1 within 2 s" in done.stdout
    assert who + "all_reduce of 7 x float32, number 4: waited 2 s in vain" in done.stdout
    assert re.search(who + r"barrier, number 5: nothing more runs, for .*number 4", done.stdout)
    assert who + "recv from rank 1, tag 5 of 1 x float32, number 1: waited 2 s" in done.stdout


def test_a_sum_that_fails_inside_of_ddp_is_an_error_of_its_backward(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "ddp")
    assert done.stdout.count("DONE") == 1, done.stderr
    assert "all_reduce of 1640 x float32" in done.stdout
    assert "waited 2 s in vain" in done.stdout
    assert done.returncode == 3


def test_a_message_of_another_length_is_told_with_who_sent_it(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "long")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 2
    long = "recv from any rank, tag 0 of 2 x float32, number 1: WorldError: the message that came"
    assert f"{long} from rank 1 is longer than the 8 bytes expected" in done.stdout
    assert "4 bytes came from rank 1 where 8 were expected" in done.stdout


def test_a_rank_that_raises_ends_the_others_and_is_heard(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "raise")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: rank is unwell") == 1
    assert "paceline: ValueError on rank 1" in done.stderr


def test_a_rank_that_leaves_does_not_keep_the_others_waiting(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "left")
    assert done.returncode != 0
    assert re.search(r"rank 1 \(\S+\) has ended while rank 0 waits for it", done.stderr)


def test_gloo_meets_by_mpi_alone_and_mpi4py_groups_stand_beside_it(mpirun):
    done = mpirun(3, "torch_backend_endings.py", "gloo")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"sum (\S+)", done.stdout)) == ["12.0", "12.0", "6.0"]


def test_on_one_node_nothing_listens_to_others(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "loopback")
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"listens at (\S+)", done.stdout)) == {"0100007F"}
