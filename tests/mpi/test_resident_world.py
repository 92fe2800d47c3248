"""The world in which tests make their calls: what goes wrong there is told, and ends it."""

import pytest
from support.resident_job import ResidentJob

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job():
    """One of its own: the others go on in theirs."""
    job = ResidentJob()
    yield job
    job.close()


def is_well(job):
    return job.on_all(3, "world_programs:identify") == [["MPIWorld", r, 3] for r in range(3)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("fail", ["rank 1: Traceback", "ValueError: rank is unwell", "rank 1 printed:\nabout to"]),
        ("vanish", ["have ended"]),
        ("hang", ["no answer from ranks [0, 1]", "resident_faults.py", "in hang"]),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_call_goes_well(job, function, said):
    assert is_well(job)
    starts = job.starts
    assert len(job.living()) == 4
    with pytest.raises(AssertionError) as caught:
        job(2, f"resident_faults:{function}", 1, limit_s=20 if function != "hang" else 2)
    for words in said:
        assert words in str(caught.value)
    assert job.living() == []
    assert is_well(job)
    assert job.starts == starts + 1


def test_a_call_leaves_no_variables_to_the_next(job):
    job(2, "resident_faults:set_variable")
    assert job(2, "resident_faults:read_variable") is None
