"""torch.distributed on the backend mpi4py, under real mpirun."""

import re

import pytest

RUN = "support.torch_backend_checks:run_program"


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_gives_what_was_computed_alone(resident, ranks):
    passed = resident(ranks, RUN, "torch_backend_collectives.py")
    assert len(passed) >= 20


def test_tensors_of_a_device_go_through_the_host_or_to_an_mpi_that_takes_them(resident):
    for found in resident.on_all(2, RUN, "torch_backend_far.py"):
        assert len(found["passed"]) >= 20
        assert found["exposed"] == 6
        assert found["asked"] in ([True, True], [True, False])


def test_ddp_trains_as_on_gloo_in_all_its_modes(resident):
    assert len(resident(2, RUN, "torch_backend_ddp.py")) == 7


def test_groups_and_messages_among_each_other_leave_nothing(resident):
    assert resident(3, RUN, "torch_backend_stress.py", 700) == 700  # 2,100 all-reduces


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_sums_over_three_groups_leave_nothing(mpirun):
    done = mpirun(3, "torch_backend_stress.py", 3400, timeout_s=590)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE 3400 rounds") == 3


def test_an_error_names_who_sent_a_message_of_another_length(resident):
    long, short = resident(2, "torch_backend_rendezvous:receive_other_lengths")
    place = "recv from any rank, tag 0 of 2 x float32, number 1: WorldError: the message"
    assert f"{place} from rank 1 is longer than the 8 bytes expected" in long
    assert "4 bytes came from rank 1 where 8 were expected" in short


def test_gloo_finds_its_ranks_by_mpi_and_mpi4py_groups_work_next_to_it(resident):
    assert resident.on_all(3, "torch_backend_rendezvous:rendezvous_for_gloo") == [12.0, 6.0, 12.0]


def test_on_one_node_nothing_listens_to_others(resident):
    found = resident.on_all(2, "torch_backend_rendezvous:find_new_listeners")
    assert {address for some in found for address in some} == {"0100007F"}


def test_what_times_out_is_named_and_the_error_of_a_rank_is_seen(mpirun):
    """One start for both: abandoned operations are still in progress, so it cannot end well."""
    done = mpirun(2, "torch_backend_endings.py", "error", timeout_s=100)
    assert done.stdout.count("DONE") == 2, done.stderr
    who = r"rank 0 got: rank 0 of 2 in group '\S+', "
    for said in (
        "monitored_barrier, number 1: no sign of rank 1 within 0.25 s",
        "all_reduce of 7 x float32, number 3: the timeout of 0.25 s expired",
        "barrier, number 4: not started, because .*number 3",
        "recv from rank 1, tag 5 of 1 x float32, number 1: the timeout of 0.25 s expired",
    ):
        assert re.search(who + said, done.stdout), done.stdout
    # A sum inside of DDP is an error of the backward pass.
    assert re.search("all_reduce of 1640 x float32.*the timeout of 0.25 s expired", done.stdout)
    assert done.returncode == 1
    assert done.stderr.count("ValueError: rank is unwell") == 1
    assert "paceline: ValueError on rank 1" in done.stderr


@pytest.mark.slow
def test_a_rank_that_leaves_does_not_keep_the_others_waiting(mpirun):
    done = mpirun(2, "torch_backend_endings.py", "left", timeout_s=100)
    assert done.returncode != 0
    assert re.search(r"rank 1 \(\S+\) has ended while rank 0 waits for it", done.stderr)
