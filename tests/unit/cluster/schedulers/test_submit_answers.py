"""What schedulers say: numbers of jobs, their states, refusals and what to do about them.

The answers of Slurm and Grid Engine were taken from real ones.
"""

import pytest
from support.job_requests import request

from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers import submit as handing_in
from paceline.cluster.schedulers.interface import CommandReply, State, advise
from paceline.cluster.schedulers.submit import Submitted, free_run_dir, submit
from paceline.errors import ConfigError, LaunchError


def told(**answers):
    """Ask a scheduler whose commands answer with a code and a text."""
    return lambda command: CommandReply(*answers.get(command[0], (None, "")))


@pytest.mark.parametrize(
    ("scheduler", "said", "job"),
    [
        ("slurm", "12\n", "12"),
        ("slurm", "12;cluster\n", "12"),
        ("slurm", "sbatch: warning: no time limit\n12\n", "12"),
        ("slurm", "sbatch: error: no\n", None),
        ("sge", "12\n", "12"),
        ("sge", "12.1-5:1\n", "12"),
        ("sge", "Unable to run job: no\n", None),
        ("pbs", "12.server.site\n", "12"),
        ("pbs", "12[].server\n", "12[]"),
        ("pbs", "qsub: Unknown queue\n", None),
        ("lsf", "Job <12> is submitted to queue <normal>.\n", "12"),
        ("lsf", "No such queue. Job not submitted.\n", None),
    ],
)
def test_the_number_of_a_job(scheduler, said, job):
    assert SCHEDULERS[scheduler].read_id(said) == job


def slurm_job(state, reason="None", code="0:0"):
    return (
        f"JobId=4 JobName=my job UserId=root(0) JobState={state} Reason={reason} "
        f"Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode={code} RunTime=0\n"
    )


ERROR_OF_GRID_ENGINE = """job_number:                 19
error reason    1:          11/16/2026 13:08:47 [0:126]: error: can't chdir to /a
"""


@pytest.mark.parametrize(
    ("scheduler", "answers", "state"),
    [
        ("slurm", {"scontrol": (0, slurm_job("PENDING", "Resources"))},
         State("waiting", None, "pending: Resources")),
        ("slurm", {"scontrol": (0, slurm_job("RUNNING"))}, State("running", None, "running")),
        ("slurm", {"scontrol": (0, slurm_job("COMPLETING"))}, State("running", None, "completing")),
        ("slurm", {"scontrol": (0, slurm_job("COMPLETED"))}, State("ended", 0, "completed")),
        ("slurm", {"scontrol": (0, slurm_job("FAILED", "NonZeroExitCode", "7:0"))},
         State("ended", 7, "failed: NonZeroExitCode")),
        ("slurm", {"scontrol": (0, slurm_job("CANCELLED", "None", "0:15"))},
         State("ended", 143, "cancelled")),
        ("slurm", {"scontrol": (0, slurm_job("TIMEOUT", "TimeLimit"))},
         State("ended", 143, "timeout: TimeLimit")),
        ("slurm", {"scontrol": (0, slurm_job("PENDING", "PartitionTimeLimit"))},
         State("stuck", None, "pending: PartitionTimeLimit")),
        ("slurm", {"scontrol": (0, slurm_job("COMPLETED") + slurm_job("RUNNING"))},
         State("running", 0, "running")),
        ("slurm", {"scontrol": (0, slurm_job("COMPLETED") + slurm_job("FAILED", "X", "3:0"))},
         State("ended", 3, "completed")),
        ("slurm", {"scontrol": (1, "slurm_load_jobs error: Invalid job id specified\n")},
         State("ended")),
        ("slurm", {"scontrol": (1, "Unable to contact slurm controller\n")}, State("unknown")),
        ("slurm", {}, State("unknown")),
        ("sge", {"qstat": (0, "job_number: 3\n")}, State("waiting", None, "waiting")),
        ("sge", {"qstat": (0, "job_number: 3\nusage    1:  cpu=00:00:00\n")},
         State("running", None, "running")),
        ("sge", {"qstat": (0, ERROR_OF_GRID_ENGINE)},
         State("stuck", None, "in error: 11/16/2026 13:08:47 [0:126]: error: can't chdir to /a")),
        ("sge", {"qstat": (1, "Following jobs do not exist:\n3\n"),
                 "qacct": (0, "failed 0\nexit_status  7\n")}, State("ended", 7)),
        ("sge", {"qstat": (1, "Following jobs do not exist:\n3\n"), "qacct": (1, "error")},
         State("ended")),
        ("sge", {"qstat": (1, "error: unable to contact qmaster\n")}, State("unknown")),
        ("sge", {}, State("unknown")),
        ("pbs", {"qstat": (0, "    job_state = Q\n")}, State("waiting", None, "waiting")),
        ("pbs", {"qstat": (0, "    job_state = R\n")}, State("running", None, "running")),
        ("pbs", {"qstat": (0, "    job_state = F\n    Exit_status = 271\n")}, State("ended", 143)),
        ("pbs", {"qstat": (153, "qstat: Unknown Job Id 7\n")}, State("ended")),
        ("pbs", {"qstat": (1, "cannot connect to server\n")}, State("unknown")),
        ("lsf", {"bjobs": (0, "PEND       -\n")}, State("waiting", None, "waiting")),
        ("lsf", {"bjobs": (0, "DONE       -\nRUN      -\n")},
         State("running", None, "running")),
        ("lsf", {"bjobs": (0, "DONE       -\nEXIT      9\n")}, State("ended", 9)),
        ("lsf", {"bjobs": (255, "Job <7> is not found\n")}, State("ended")),
        ("lsf", {"bjobs": (255, "LSF is down\n")}, State("unknown")),
    ],
)  # fmt: skip
def test_states(scheduler, answers, state):
    assert SCHEDULERS[scheduler].read_state("7", told(**answers)) == state


@pytest.mark.parametrize(
    ("scheduler", "said", "advice"),
    [
        ("slurm", "sbatch: error: invalid partition specified: nix",
         "Choose another --queue (there are: one, two)"),
        ("slurm", "Requested node configuration is not available", "No node has that many cores"),
        ("slurm", "Requested time limit is invalid", "Ask for less --time"),
        ("slurm", "Invalid account or account/partition combination", "Name an --account"),
        ("slurm", "Job dependency problem", "in --after"),
        ("sge", 'job requests unknown queue "nix"', "another --queue (there are: one, two)"),
        ("sge", 'the requested parallel environment "nix" does not exist',
         "another --pe (there are: one, two)"),
        ("sge", 'unknown resource "gpu"', "--extra='-l h_vmem=2G'"),
        ("pbs", "qsub: Unknown queue", "Choose another --queue"),
        ("lsf", "nix: No such queue. Job not submitted.", "(there are: one, two)"),
        ("lsf", "something else", "Its message above says why"),
    ],
)  # fmt: skip
def test_refusals_come_with_a_remedy(scheduler, said, advice):
    ask = told(sinfo=(0, "one\ntwo\none\n"), qconf=(0, "one\ntwo\n"), bqueues=(0, "one\ntwo\n"))
    assert advice in advise(SCHEDULERS[scheduler], said, ask)
    assert advise(SCHEDULERS[scheduler], said, told())  # also where nothing can be listed


@pytest.mark.parametrize(
    ("names", "pe"), [("mpi\nother\n", "mpi"), ("orte\n", "orte"), ("", "mpi")]
)
def test_the_parallel_environment_is_found(names, pe):
    filled = SCHEDULERS["sge"].fill_in(request(nodes=2), told(qconf=(0, names)))
    assert filled.pe == pe


def test_several_parallel_environments_need_a_choice():
    fill_in = SCHEDULERS["sge"].fill_in
    with pytest.raises(LaunchError, match=r"choose one by --pe \(one, two\)"):
        fill_in(request(nodes=2), told(qconf=(0, "one\ntwo\n")))
    assert fill_in(request(nodes=2, pe="two"), told(qconf=(0, "one\ntwo\n"))).pe == "two"
    assert fill_in(request(), told(qconf=(0, "one\ntwo\n"))).pe is None  # one slot needs none


def test_an_environment_for_one_node_takes_no_two():
    rule = (0, "pe_name   smp\nallocation_rule    $pe_slots\n")
    with pytest.raises(LaunchError, match="--nodes is 2, but the parallel environment smp"):
        SCHEDULERS["sge"].fill_in(request(nodes=2, pe="smp"), told(qconf=rule))


def test_a_refusal_spares_what_others_left(monkeypatch, tmp_path):
    monkeypatch.setattr(handing_in, "ask_scheduler", lambda *_: CommandReply(1, "no\nreally"))
    (tmp_path / "model").touch()
    with pytest.raises(LaunchError, match=r"Slurm refused the job: no really. Its message"):
        submit(request(run_dir=tmp_path), SCHEDULERS["slurm"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "answer",
    [
        CommandReply(0, "Submitted batch job 7"),
        CommandReply(None, "sbatch did not answer", late=True),
    ],
)
def test_a_job_that_may_have_been_taken_keeps_its_script(monkeypatch, tmp_path, answer):
    monkeypatch.setattr(handing_in, "ask_scheduler", lambda *_: answer)
    with pytest.raises(
        LaunchError, match=r"Slurm may have accepted the job.*Look for it"
    ) as raised:
        submit(request(run_dir=tmp_path), SCHEDULERS["slurm"])
    assert answer.said in str(raised.value)
    assert str(tmp_path / "job.sh") in str(raised.value)
    assert (tmp_path / "job.sh").exists()


def test_the_script_is_handed_in_from_its_directory(monkeypatch, tmp_path):
    asked = []

    def ask(command, directory):
        asked.append((command, directory, (directory / "job.sh").read_text()))
        return CommandReply(0, "12\n")

    monkeypatch.setattr(handing_in, "ask_scheduler", ask)
    wanted = request(run_dir=tmp_path / "a b", tasks=(("x",),))
    job = submit(wanted, SCHEDULERS["slurm"])
    script = SCHEDULERS["slurm"].render(wanted)
    assert asked == [(("sbatch", "--parsable", "job.sh"), tmp_path / "a b", script)]
    assert job == Submitted("12", tmp_path / "a b", 1)
    assert job.exit_file(1).name == "job-12.1.exit"


def test_a_run_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/run cannot be written: Not a directory"):
        submit(request(run_dir=tmp_path / "file" / "run"), SCHEDULERS["slurm"])


def test_a_free_run_directory_does_not_exist(tmp_path):
    first = free_run_dir("x", tmp_path)
    first.mkdir()
    assert not free_run_dir("x", tmp_path).exists()
