"""What is asked of a scheduler: read, and refused with all faults at once."""

import pytest
from support.job_requests import request

from paceline.cluster.schedulers.request import make_request
from paceline.cluster.schedulers.sweep import make_tasks
from paceline.core.quantities import read_memory, read_time, show_clock
from paceline.errors import ConfigError

KNOWN = {
    name: value
    for name, value in vars(request()).items()
    if name in ("command", "run_dir", "directory", "python", "name")
}


def make(**given):
    return make_request(given, KNOWN, lambda request: [])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1.5h", 5400),
        ("00:10:00", 600),
        ("36:00:00", 129600),
        ("1-12:00:00", 129600),
    ],
)
def test_times(text, seconds):
    assert read_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["90", "0s", "2d", "1:30", "1:60:00", "epoch", "-5m", "1h30m", "00:00:00"]
)
def test_a_time_without_its_unit_is_none(text):
    with pytest.raises(ValueError, match=text):
        read_time(text)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("500M", 500), ("2G", 2048), ("2GB", 2048), ("1.5G", 1536), ("1T", 2**20)],
)
def test_amounts_of_memory(text, megabytes):
    assert read_memory(text) == megabytes


@pytest.mark.parametrize("text", ["500", "2g", "0M", "G", "-1G", "0.0001M"])
def test_memory_without_its_unit_is_none(text):
    with pytest.raises(ValueError, match=text):
        read_memory(text)


def test_clocks_count_on_after_a_day():
    assert (show_clock(59), show_clock(90061)) == ("00:00:59", "25:01:01")


def test_options_are_read():
    made = make(
        nodes="2",
        ranks_per_node="4",
        threads="3",
        memory_per_rank="1G",
        time="2h",
        save_time="5m",
        queue="long",
        env=["A=b=c", "B="],
        modules=["gcc"],
        after=["7,8", "9"],
        extra=["--exclusive"],
        requeue="0",
    )
    assert (made.nodes, made.ranks, made.cores_per_node, made.memory_per_node) == (2, 8, 12, 4096)
    assert (made.time, made.warning_s, made.requeue) == (7200, 300, 0)
    assert made.env == (("A", "b=c"), ("B", ""))
    assert (made.after, made.extra, made.modules) == (("7", "8", "9"), ("--exclusive",), ("gcc",))


def test_what_was_not_given_stays_as_it_is():
    assert make(nodes=None, env=[], queue=None) == request()


def test_all_faults_are_told_at_once():
    wrong = {
        "nodes": "0",
        "ranks_per_node": "two",
        "threads": "-1",
        "gpus_per_node": "1.5",
        "memory_per_rank": "2",
        "time": "90",
        "save_time": "soon",
        "requeue": "often",
        "name": "two\nlines",
        "queue": " ",
        "account": "\x1b[2J",
        "pe": "",
        "modules": ["gcc", " "],
        "env": ["A=1", "2B=3"],
        "after": ["7,,8"],
        "extra": ["--x\n#SBATCH --y"],
    }
    with pytest.raises(ConfigError) as caught:
        make(**wrong)
    said = str(caught.value)
    for name in wrong:
        flag = "--module" if name == "modules" else "--" + name.replace("_", "-")
        assert f"{flag} is " in said
    assert "--env is '2B=3', expected: NAME or NAME=VALUE" in said
    assert "expected: a time with its unit" in said
    assert "\n" not in said
    assert "\x1b" not in said


def test_the_scheduler_s_faults_are_among_them():
    with pytest.raises(ConfigError, match=r"--nodes is 'x'.*; no such thing"):
        make_request({"nodes": "x"}, KNOWN, lambda request: ["no such thing"])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"save_time": "5m"}, "give --time, too"),
        ({"time": "5m", "save_time": "5m"}, "no time is left to train"),
    ],
)
def test_saving_needs_a_limit_that_is_longer(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make(**given)


def test_tasks_are_all_combinations():
    tasks = make_tasks("1-2,7", ["optimizer.lr=0.1,0.2"])
    assert len(tasks) == 6
    assert tasks[1] == (("optimizer.lr", "0.1"), ("seed", "2"))
    assert tasks[5] == (("optimizer.lr", "0.2"), ("seed", "7"))
    assert make_tasks(None, []) == ()


@pytest.mark.parametrize(
    ("seeds", "sweeps", "complaints"),
    [
        ("5-1", [], ["--array-seeds is '5-1'"]),
        ("a", ["lr"], ["--array-seeds is 'a'", "--sweep is 'lr', expected: KEY=V1,V2"]),
        (None, ["=1", "a=1,,2"], ["--sweep is '=1'", "--sweep is 'a=1,,2'"]),
        (None, ["a=1", "a=2"], ["a is swept twice"]),
        ("1", ["seed=2"], ["seed is swept twice"]),
        ("1-500", ["a=1,2,3"], ["the array has 1500 tasks, expected at most 1000"]),
        ("1-9999999", [], ["--array-seeds is"]),
    ],
)
def test_wrong_arrays_are_explained(seeds, sweeps, complaints):
    with pytest.raises(ConfigError) as caught:
        make_tasks(seeds, sweeps)
    for complaint in complaints:
        assert complaint in str(caught.value)
