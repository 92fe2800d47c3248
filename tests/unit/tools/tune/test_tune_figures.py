"""What ranks wrote, as one estimate."""

import json

import pytest

from paceline.observe.waiting import RunFacts
from paceline.tools.tune.figures import estimate, read_marks


def line(seconds, samples, steps, **more):
    usual = {"wait_s": 0.0, "spent_s": seconds, "peak_bytes": 300, "shared_bytes": 100}
    return {"seconds": seconds, "samples": samples, "steps": steps, "workers": 2} | (
        usual | {"unit": "samples", "facts": {"own_loop": True}} | more
    )


def course(rate, begin_s=1000.0, count=9, step_samples=10, **more):
    """A line every half second, after a first step that took long."""
    first = line(begin_s, step_samples, 1, **more)
    later = [
        line(begin_s + 0.5 * n, step_samples + rate * 0.5 * n, 1 + n * 5, **more)
        for n in range(1, count)
    ]
    return [first, *later]


def test_ranks_are_added_up_each_by_its_own_clock():
    found = estimate({0: course(100, 1000.0), 1: course(50, 7.0)}, ranks=2)
    assert found.rate == pytest.approx(150)
    assert found.unit == "samples"
    assert found.batch == pytest.approx(100 / 10 + 50 / 10)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.missing == 0


def test_first_steps_and_the_warm_up_are_left_out():
    slow_start = [line(0, 10, 1), line(5, 20, 2), line(6, 120, 12), line(7, 220, 22)]
    assert estimate({0: slow_start}, 1).rate == pytest.approx(2 * 100), "one rank of two workers"
    assert estimate({0: slow_start}, 1, warm_up_s=6).seconds == 1
    assert estimate({0: slow_start}, 1, warm_up_s=7) is None


def test_there_is_no_estimate_before_every_rank_has_steps():
    assert estimate({}, 2) is None
    assert estimate({0: []}, 2) is None
    assert estimate({0: course(100), 1: course(100, count=2)}, 2) is None


def waits(share, **more):
    """The course of a rank that waits for this share of its time."""
    return [one | {"wait_s": share * one["spent_s"]} for one in course(10, **more)]


def test_waiting_is_the_share_of_all_ranks():
    found = estimate({0: waits(0.5), 1: waits(0.1)}, 2)
    assert found.waiting == pytest.approx(0.3)


def test_waiting_is_split_into_uneven_work_and_a_slow_rank():
    found = estimate({0: waits(0.5), 3: waits(0.01)}, 2)
    assert found.waits.uneven == pytest.approx(0.01)
    assert found.waits.slow == pytest.approx(0.245)
    assert found.waits.slowest_rank == 3
    assert (found.waits.seconds, found.waits.steps) == (found.seconds, found.steps) == (3.5, 35)
    assert found.facts == RunFacts(own_loop=True)


def test_waiting_is_not_split_where_the_slow_rank_may_be_one_that_is_missing():
    assert estimate({0: waits(0.5, workers=3), 1: waits(0.5, workers=3)}, 3).waits is None


def test_what_ranks_share_counts_once():
    found = estimate({0: course(10), 1: course(10, peak_bytes=340)}, 2)
    assert found.rank_bytes == 340
    assert found.total_bytes == 200 + 240 + 100
    assert found.shared_bytes == 100


def test_ranks_that_cannot_write_here_are_taken_to_be_like_the_others():
    found = estimate({0: course(100, workers=4), 1: course(100, workers=4)}, 4)
    assert (found.rate, found.missing) == (pytest.approx(400), 2)
    assert found.total_bytes == 4 * 200 + 100


def test_an_uneven_course_is_less_sure():
    lines = [line(0, 0, 1), line(1, 10, 2), line(2, 40, 3), line(3, 50, 4), line(4, 80, 5)]
    assert 0.2 < estimate({0: lines}, 1).error < 0.4


def test_a_last_line_that_tells_no_new_step_is_left_out():
    lines = course(100)
    assert estimate({0: [*lines, lines[-1]]}, 1) == estimate({0: lines}, 1)


def test_files_are_read_but_for_a_line_that_is_being_written(tmp_path):
    whole = json.dumps(line(1, 2, 3))
    (tmp_path / "rank-0003.jsonl").write_text(f'{whole}\n{{"seco')
    (tmp_path / "rank-0004.jsonl").write_text("")
    assert read_marks(tmp_path) == {3: [line(1, 2, 3)], 4: []}
