"""The page and its JSON, what ranks report, and how connections are tried."""

import json
import threading
from dataclasses import replace

import pytest

from paceline.cluster.hosts import SSH, Host
from paceline.cluster.schedulers.interface import Allocation
from paceline.comm.threads import run_world
from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor import diagnose as diagnosing
from paceline.tools.doctor import trial, world
from paceline.tools.doctor.check import Check
from paceline.tools.doctor.diagnose import Question, choose_remote_shell, trial_options
from paceline.tools.doctor.page import Diagnosis, condense, render_json, render_page
from paceline.tools.doctor.reach import connect, listening
from paceline.tools.doctor.world import Trial, judge_trial, read_outcome

GOOD = Check("Python", "ok", "3.11.7", "nothing to do")
BAD = Check("mpirun", "fail", "two MPIs", "Use one.", ("n2",))
SEEN = {
    "size": 2,
    "ranks": [{"node": "a", "cpus": 2, "threads": "1"}, {"node": "b", "cpus": 2, "threads": "1"}],
    "sum_is_right": True,
    "small_s": 2e-5,
    "large_s": 16e-3,
    "pairs": [{"nodes": ["a", "b"], "small_s": 3e-5, "bytes_per_s": 1.2e8}],
}


def page(*checks: Check, **more: object) -> list[str]:
    return [line for _, line in render_page(Diagnosis(checks, **more))]


def test_a_sound_page_ends_with_yes():
    lines = page(GOOD, world=SEEN)
    assert lines[0].split() == ["ok", "Python", "3.11.7"]
    assert "a - b                  30 us  0.12 GB/s" in lines
    assert lines[-1] == "Training would run here."


def test_a_page_with_failures_counts_them_and_names_remedies():
    lines = page(GOOD, BAD, replace(BAD, verdict="warn"))
    assert lines[1].split() == ["FAIL", "mpirun", "n2:", "two", "MPIs"]
    assert lines[2].strip() == "-> Use one."
    assert lines[-1] == "Training would not run: 1 problem."
    assert page(BAD, BAD)[-1] == "Training would not run: 2 problems."


def test_a_quick_page_does_not_say_more_than_it_knows():
    assert "no ranks were started" in page(GOOD, tried=False)[-1]


def test_long_lines_are_wrapped_at_words():
    path = "/a" * 60
    lines = [line for _, line in render_page(Diagnosis((replace(GOOD, detail=f"x {path}"),)), 80)]
    assert lines[1].strip() == path


def test_many_hosts_that_are_well_take_one_line():
    checks = [replace(GOOD, detail=f"n{i}", hosts=(f"n{i}",)) for i in range(9)]
    (one,) = condense(checks)
    assert one.detail == "n0 (similar on 8 more)"
    assert len(condense([*checks, BAD, BAD])) == 3
    assert len(condense(checks[:4])) == 4


def test_json_tells_all():
    told = json.loads(render_json(Diagnosis((GOOD, BAD), {"n1": NodeInfo(host="n1")}, SEEN)))
    assert told["runs"] is False
    assert told["checks"][1]["remedy"] == "Use one."
    assert told["nodes"]["n1"]["host"] == "n1"
    assert told["world"]["pairs"][0]["nodes"] == ["a", "b"]
    assert json.loads(render_json(Diagnosis((GOOD,))))["runs"] is True


def test_a_world_that_formed_is_well():
    checks = judge_trial(Trial(SEEN), 2, several=True)
    assert [(one.name, one.verdict) for one in checks] == [("world", "ok"), ("all-reduce", "ok")]
    assert "4 KB in 20 us, 16 MB at 1.05 GB/s" in checks[1].detail


@pytest.mark.parametrize(
    ("changes", "several", "detail"),
    [
        ({"size": 1}, False, "but 2 were started"),
        ({"ranks": SEEN["ranks"][:1] * 2}, True, "but there are several hosts"),
        ({"sum_is_right": False}, False, "came out wrong"),
    ],
)
def test_a_world_that_is_not_the_one_started_fails(changes, several, detail):
    (check,) = judge_trial(Trial({**SEEN, **changes}), 2, several)
    assert check.verdict == "fail"
    assert detail in check.detail
    assert check.remedy


def test_a_slow_or_crowded_world_is_warned_of():
    crowded = [{"node": "a", "cpus": 1, "threads": "4"}, SEEN["ranks"][1]]
    seen = {**SEEN, "small_s": 8e-3, "ranks": crowded}
    _, speed, cores = judge_trial(Trial(seen), 2, several=True)
    assert (speed.verdict, cores.verdict) == ("warn", "warn")
    assert "rank 0 on a has 4 threads and may run on 1 processors" in cores.detail


def test_a_world_that_did_not_form_tells_what_the_launcher_said():
    failed = Trial(None, "LaunchError: no", ("paceline", "run", "-n", "2"))
    (here,) = judge_trial(failed, 2, several=False)
    (there,) = judge_trial(failed, 2, several=True)
    assert (here.verdict, here.detail) == ("fail", "LaunchError: no")
    assert here.remedy == "Try it by hand: paceline run -n 2"
    assert "firewall" in there.remedy


def test_the_outcome_is_found_among_other_lines():
    assert read_outcome(f'hello\n{world.MARK}{{"size": 2}}\nbye\n') == {"size": 2}
    assert read_outcome("hello\n") is None


def test_ranks_measure_their_world():
    def program(one):
        one.node = f"node{one.rank % 2}"
        return trial.measure(one)

    seen = run_world(3, program)
    assert seen[0]["size"] == 3
    assert seen[0]["sum_is_right"]
    assert [pair["nodes"] for pair in seen[0]["pairs"]] == [["node0", "node1"]]
    assert seen[0]["small_s"] > 0
    assert seen[0]["pairs"][0]["bytes_per_s"] > 0


def test_a_wrong_sum_is_noticed():
    def program(one):
        right = one.all_reduce

        def wrong(buffer):
            right(buffer)
            buffer += one.rank

        one.all_reduce = wrong
        return trial._sum_is_right(one)

    assert run_world(2, program) == [False, False]


def test_of_many_nodes_neighbours_are_measured():
    names = [f"n{i}" for i in range(9)]
    assert len(trial.pairs(names[:8])) == 28
    assert trial.pairs(names)[-1] == ("n8", "n0")
    assert len(trial.pairs(names)) == 9


@pytest.mark.parametrize(
    ("question", "ranks", "options"),
    [
        (Question(), None, "-n 2"),
        (Question(), 3, "-n 3"),
        (Question(hosts=(Host("a", 8), Host("b"))), None, "-n 2 --hosts a:1,b:1"),
        (Question(hosts=(Host("a", 8), Host("b"))), 9, "-n 9 --hosts a:8,b"),
        (Question(hosts=(Host("a", 8),)), None, "-n 2 --hosts a:2"),
        (Question(allocation=Allocation("slurm", (Host("a", 1),) * 3)), None, "-n 3"),
        (Question(allocation=Allocation("slurm", (Host("a", 1),))), None, "-n 2"),
    ],
)
def test_ranks_are_started_on_every_host(question, ranks, options):
    count, words = trial_options(question, ranks)
    assert " ".join(words) == options
    assert count == int(words[1])


def test_hosts_are_reached_by_what_the_scheduler_has_for_it():
    both = (Host("a", 1), Host("b", 1))
    assert choose_remote_shell(Question(hosts=both)) == SSH
    assert choose_remote_shell(Question()) == SSH
    assert choose_remote_shell(Question(allocation=Allocation("slurm", both)))[0] == "srun"


def test_doctor_does_not_start_ranks_as_a_rank(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    check = diagnosing._started_by()
    assert check is not None
    assert "openmpi has started this as one of 2 ranks" in check.detail


def test_a_port_that_listens_is_reached_and_one_that_does_not_is_told():
    with listening() as (port, met):
        assert connect(["127.0.0.1"], port) == ""
        assert met.wait(5)
    assert "refused" in connect(["127.0.0.1"], port)
    assert connect([], port) == "no address is known"
    assert not [one for one in threading.enumerate() if one.name.startswith("paceline")]
