"""Waiting for a job, with a clock that jumps and a scheduler that says what it is told to."""

from pathlib import Path

import pytest

from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers.follow import PollTimes, follow
from paceline.cluster.schedulers.interface import CommandReply
from paceline.cluster.schedulers.submit import Submitted
from paceline.errors import LaunchError

GONE = CommandReply(1, "slurm_load_jobs error: Invalid job id specified\n")


def is_(state, reason="None", code="0:0"):
    return CommandReply(0, f"JobId=7 JobState={state} Reason={reason} ExitCode={code}\n")


class Course:
    """What happens to a job: at each second another thing."""

    def __init__(self, folder: Path, *events):
        self.folder, self.events, self.now = folder, list(events), 0.0
        self.answer, self.asked = is_("PENDING", "Priority"), 0
        self.written, self.said = b"", ""

    def sleep(self, seconds):
        assert self.now < 5000, "it would wait for ever"
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            _, kind, value = self.events.pop(0)
            if kind == "state":
                self.answer = value
            else:
                with (self.folder / kind).open("a") as file:
                    file.write(value)

    def ask(self, command):
        self.asked += 1
        return self.answer

    def write(self, piece):
        self.written += piece

    def say(self, text):
        self.said += text

    def follow(self, tasks=0, scheduler="slurm"):
        job = Submitted("7", self.folder, tasks)
        pace = PollTimes(sleep=self.sleep, clock=lambda: self.now)
        return follow(job, SCHEDULERS[scheduler], self.write, self.say, self.ask, pace)


@pytest.mark.parametrize("code", [0, 7])
def test_the_log_is_shown_and_the_code_returned(tmp_path, code):
    course = Course(
        tmp_path,
        (10, "state", is_("RUNNING")),
        (11, "job-7.log", "one\n"),
        (12, "job-7.log", "two\n"),
        (20, "job-7.log", "three\n"),
        (20, "job-7.exit", f"{code}\n"),
        (21, "state", is_("COMPLETED")),
    )
    assert course.follow() == code
    assert course.written == b"one\ntwo\nthree\n"
    assert "job 7 is pending: Priority\n" in course.said
    assert course.said.endswith("job 7 is running\npaceline: job 7 is completed\n")
    assert course.now < 25
    assert course.asked < 12  # the scheduler is spared


@pytest.mark.parametrize(("code", "how"), [(0, "completed"), (7, "over: exit code 7")])
def test_the_end_is_told_where_the_scheduler_does_not(tmp_path, code, how):
    """Grid Engine only stops knowing the job."""
    course = Course(
        tmp_path,
        (0, "state", CommandReply(0, "exec_host_list 1: n1\n")),
        (20, "job-7.exit", f"{code}\n"),
        (21, "state", CommandReply(1, "Following jobs do not exist: 7\n")),
    )
    assert course.follow(scheduler="sge") == code
    assert course.said.endswith(f"job 7 is running\npaceline: job 7 is {how}\n")


def test_a_code_counts_when_the_scheduler_agrees(tmp_path):
    """A job that is preempted may leave a code and be started again all the same."""
    course = Course(
        tmp_path,
        (5, "job-7.exit", "75\n"),
        (6, "state", is_("PENDING", "BeginTime")),
        (300, "state", GONE),
    )
    assert course.follow() == 75
    assert course.now >= 300


def test_a_requeued_job_is_waited_for_again(tmp_path):
    course = Course(
        tmp_path,
        (5, "state", is_("RUNNING")),
        (9, "job-7.log", "first\n"),
        (10, "state", is_("PENDING", "BeginTime")),
        (200, "state", is_("RUNNING")),
        (210, "job-7.log", "second\n"),
        (220, "job-7.exit", "0\n"),
        (221, "state", GONE),
    )
    assert course.follow() == 0
    assert course.written == b"first\nsecond\n"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (is_("CANCELLED", "None", "0:15"), 143),
        (is_("NODE_FAIL"), 1),
        (is_("COMPLETED"), 0),
        (GONE, 1),
    ],
)
def test_a_killed_job_leaves_no_code(tmp_path, state, code):
    course = Course(tmp_path, (5, "state", is_("RUNNING")), (10, "state", state))
    assert course.follow() == code
    assert f"left no exit code in {tmp_path}: it was killed" in course.said


def test_a_code_that_comes_late_is_taken(tmp_path):
    course = Course(tmp_path, (5, "state", GONE), (15, "job-7.exit", "3\n"))
    assert course.follow() == 3


def test_a_job_that_cannot_start_is_given_up(tmp_path):
    course = Course(tmp_path, (5, "state", is_("PENDING", "PartitionTimeLimit")))
    with pytest.raises(LaunchError, match=r"job 7 cannot start.*Stop it: scancel 7"):
        course.follow()


def test_silence_is_borne_for_some_time(tmp_path):
    down = CommandReply(1, "Unable to contact slurm controller\n")
    course = Course(
        tmp_path,
        *((5, "state", down), (1000, "state", is_("RUNNING"))),
        *((1010, "job-7.exit", "0\n"), (1011, "state", GONE)),
    )
    assert course.follow() == 0
    course = Course(tmp_path / "other", (5, "state", down))
    with pytest.raises(LaunchError, match=r"Slurm has not reported for 1[0-9]{3} s on job 7"):
        course.follow()


def test_an_array_ends_with_its_last_task(tmp_path):
    course = Course(
        tmp_path,
        (5, "state", is_("RUNNING")),
        (10, "job-7.2.exit", "0\n"),
        (20, "job-7.1.exit", "4\n"),
        (30, "job-7.3.exit", "0\n"),
        (31, "state", GONE),
    )
    assert course.follow(tasks=3) == 4
    assert course.said.count("task 1 of 3 ended with code 4") == 1


def test_an_array_with_a_killed_task_is_not_well(tmp_path):
    course = Course(tmp_path, (5, "job-7.1.exit", "0\n"), (10, "state", GONE))
    assert course.follow(tasks=2) == 1


def test_the_successor_of_a_job_is_followed(tmp_path):
    running, gone = (
        CommandReply(0, "job_state = R\n"),
        CommandReply(0, "job_state = F\nExit_status = 0\n"),
    )
    course = Course(
        tmp_path,
        (1, "state", running),
        (5, "job-7.next", "8\n"),
        (9, "job-8.log", "on\n"),
        (20, "job-8.exit", "0\n"),
        (21, "state", gone),
    )
    assert course.follow(scheduler="pbs") == 0
    assert course.written == b"on\n"
