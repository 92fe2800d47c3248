"""Job scripts: the whole text against recorded ones, and every value in its place.

After a wanted change write the recorded scripts anew, and read the difference:
    PACELINE_GOLDEN=1 python -m pytest tests/unit/cluster/schedulers/test_submit_scripts.py
"""

import os
from pathlib import Path

import pytest
from support.job_requests import CASES, NASTY, request

from paceline.cluster.schedulers import SCHEDULERS

GOLDEN = Path(__file__).parent / "golden"
RECORDING = os.environ.get("PACELINE_GOLDEN") == "1"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_scripts_are_as_recorded(scheduler, case):
    script = SCHEDULERS[scheduler].render(CASES[case])
    file = GOLDEN / f"{scheduler}-{case}.sh"
    if RECORDING:
        file.write_text(script)
    assert script == file.read_text()


def test_every_recorded_script_is_compared():
    assert {f.stem for f in GOLDEN.glob("*.sh")} == {f"{s}-{c}" for s in SCHEDULERS for c in CASES}


CHANGES = {
    "nodes": (
        {"nodes": 3},
        ("--nodes=3", "-pe mpi 3", "select=3:", "-n 3"),
    ),
    "ranks_per_node": (
        {"ranks_per_node": 4},
        ("--ntasks-per-node=4", "-pe mpi 4", "mpiprocs=4", "span[ptile=4]"),
    ),
    "threads": (
        {"ranks_per_node": 2, "threads": 3},
        ("--cpus-per-task=3", "-pe mpi 6", "ncpus=6:mpiprocs=2:ompthreads=3", "span[ptile=6]"),
    ),
    "memory_per_rank": (
        {"memory_per_rank": 1000, "ranks_per_node": 2, "threads": 3},
        ("--mem=2000M", "-l mem_free=334M", "mem=2000mb", "rusage[mem=2000MB/host]"),
    ),
    "time": (
        {"time": 5400},
        ("--time=01:30:00", "-l h_rt=01:30:00\n", "walltime=01:30:00", "-W 01:30"),
    ),
    "save_time": (
        {"time": 5400, "save_time": 600},
        ("--signal=B:USR1@600", "sleep 4800 &", "sleep 4800 &", "-wa USR1 -wt 10"),
    ),
    "queue": (
        {"queue": "long"},
        ("--partition=long", "-q long", "-q long", "-q long"),
    ),
    "account": (
        {"account": "physics"},
        ("--account=physics", "-P physics", "-A physics", "-P physics"),
    ),
    "gpus_per_node": (
        {"gpus_per_node": 2},
        ("--gpus-per-node=2", "-l gpu=2", "ngpus=2", '-gpu "num=2"'),
    ),
    "name": (
        {"name": "other"},
        ("--job-name=other", "-N other", "-N other", '-J "other"'),
    ),
    "modules": ({"modules": ("gcc/12",)}, ("\nmodule load gcc/12 || finish 1\n",) * 4),
    "env": ({"env": (("A", "b c"),)}, ("\nexport A='b c'\n",) * 4),
    "requeue": (
        {"requeue": 4},
        ("#SBATCH --requeue", "#$ -r y", "#PBS -r y", '#BSUB -Q "99"'),
    ),
    "after": (
        {"after": ("7", "8")},
        ("--dependency=afterok:7:8", "-hold_jid 7,8", "depend=afterok:7:8", "done(7) && done(8)"),
    ),
    "extra": (
        {"extra": ("--one", "--two 2")},
        tuple(f"{mark} --one\n{mark} --two 2\n" for mark in ("#SBATCH", "#$", "#PBS", "#BSUB")),
    ),
    "pe": ({"pe": "smp", "threads": 2}, (None, "-pe smp 2", None, None)),
    "tasks": (
        {"tasks": (("--set", "seed=5"), ("--set", "seed=9"))},
        ("--array=1-2", "-t 1-2", "-J 1-2", '-J "mnist-bsp[1-2]"'),
    ),
    "command": ({"command": ("run", "a b.py")}, (" -m paceline run 'a b.py' &\n",) * 4),
    "python": ({"python": "/my py/bin/python"}, ("\n'/my py/bin/python' -m paceline",) * 4),
    "directory": ({"directory": Path("/a b")}, ("\ncd '/a b' || finish 1\n",) * 4),
    "run_dir": ({"run_dir": Path("/a b")}, ("\nrun_dir='/a b'\n",) * 4),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_changes_the_script(name):
    changes, expected = CHANGES[name]
    for scheduler, text in zip(SCHEDULERS.values(), expected, strict=True):
        if text is not None:
            assert text not in scheduler.render(request())
            assert text in scheduler.render(request(**changes))


def test_the_table_of_options_is_complete():
    assert set(CHANGES) == set(vars(request()))


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_values_of_the_shell_stay_on_their_line(scheduler, value):
    """Some schedulers take a line for a directive wherever it stands."""
    plain = request(modules=("m",), env=(("A", "a"),), tasks=(("w",),))
    nasty = request(
        modules=(value,),
        env=(("A", value),),
        tasks=((value,),),
        command=("run", value),
        python=value,
        directory=Path("/home") / value,
        run_dir=Path("/home") / value,
    )
    script = SCHEDULERS[scheduler].render(nasty)
    assert script.count("\n") == SCHEDULERS[scheduler].render(plain).count("\n")
    assert "\u2028" not in script


@pytest.mark.parametrize(("time", "warning"), [(60, 12), (300, 60), (3600, 90), (None, 90)])
def test_short_jobs_are_warned_later(time, warning):
    assert f"@{warning}\n" in SCHEDULERS["slurm"].render(request(time=time))


def test_a_job_of_one_slot_needs_no_parallel_environment():
    assert "-pe" not in SCHEDULERS["sge"].render(request(pe="mpi"))


def test_without_requeue_nothing_is_requeued():
    for name, word in zip(SCHEDULERS, ("scontrol", "exit 99", "qsub -v", "exit 99"), strict=True):
        assert word in SCHEDULERS[name].render(request(requeue=1))
        assert word not in SCHEDULERS[name].render(request(requeue=0))
    assert "#SBATCH --no-requeue" in SCHEDULERS["slurm"].render(request(requeue=0))


def test_a_task_of_a_pbs_array_is_not_handed_in_again():
    assert "qsub -v" not in SCHEDULERS["pbs"].render(request(requeue=5, tasks=(("x",),)))


@pytest.mark.parametrize(
    ("scheduler", "changes", "complaint"),
    [
        ("slurm", {"account": "a,b"}, "--account is 'a,b'"),
        ("slurm", {"run_dir": Path("/a%j")}, "the run directory is '/a%j', expected: no backsl"),
        ("slurm", {"run_dir": Path("/a\\b")}, "choose another --run-dir"),
        ("slurm", {"time": 99999, "save_time": 70000}, "--save-time is 70000, expected: at most"),
        ("sge", {"name": "2nd"}, "--name is '2nd', expected: no digit first"),
        ("sge", {"name": "a/b"}, "--name is 'a/b'"),
        ("sge", {"queue": "a b"}, "--queue is 'a b', expected: ASCII text without spaces"),
        ("sge", {"account": "it's"}, '--account is "it\'s"'),
        ("sge", {"name": "größe"}, "--name is 'größe'"),
        ("sge", {"name": "a#b"}, "--name is 'a#b'"),
        ("sge", {"run_dir": Path("/a$USER")}, "the run directory is '/a$USER', expected: no $HOME"),
        ("pbs", {"name": "a b"}, "--name is 'a b', expected: letters, digits"),
        ("pbs", {"queue": "q;x"}, "--queue is 'q;x'"),
        ("lsf", {"name": "a[1-9]"}, "--name is 'a[1-9]'"),
        ("lsf", {"account": '"x"'}, "--account is '\"x\"'"),
    ],
)
def test_what_a_directive_cannot_carry_is_refused(scheduler, changes, complaint):
    (said,) = SCHEDULERS[scheduler].check(request(**changes))
    assert complaint in said


def test_usual_names_are_taken():
    names = {"name": "mnist-bsp_2.0", "queue": "gpu_long", "account": "hep-ph"}
    assert not [fault for s in SCHEDULERS.values() for fault in s.check(request(**names))]
    assert not SCHEDULERS["pbs"].check(request(queue="long@server"))
