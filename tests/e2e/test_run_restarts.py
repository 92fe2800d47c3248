"""Jobs that save and stop, that are started again, and whose names are odd.

When and how often a job is started again is in tests/unit/launch/test_restarts.py.
"""

import json
import re
import signal
from pathlib import Path

import pytest
from support.commands import PACELINE, started

ODD = "it's \"a $(touch x) `touch y` \n dir; * \\n é"

FAIL_UNTIL = """
import os, sys, paceline
restart, rank = int(os.environ["PACELINE_RESTART"]), paceline.init().rank
os.write(1, b"restart %d on %d\\n" % (restart, rank))
paceline.init().barrier()
if restart < int(sys.argv[1]):
    raise RuntimeError("out of luck")
"""


def write(folder: Path, code: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.py").write_text(code)
    return "program.py"


@pytest.mark.parametrize(
    ("ranks", "failures"),
    [
        (2, 1),
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
def test_a_job_is_started_again_until_it_succeeds(paceline, tmp_path, ranks, failures):
    name = write(tmp_path, FAIL_UNTIL)
    done = paceline("run", "-n", ranks, "--restarts", "3", "--", name, failures)
    assert done.returncode == 0, done.stderr
    times = range(failures + 1)
    said = [f"restart {restart} on {rank}" for restart in times for rank in range(ranks)]
    assert sorted(done.stdout.splitlines()) == said
    assert re.findall("paceline: the job failed.*", done.stderr) == [
        f"paceline: the job failed with code 1; restart {restart} of 3" for restart in times[1:]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_after_the_last_restart_the_failure_comes_back(paceline, tmp_path, ranks):
    name = write(tmp_path, "import os, sys; sys.exit(4 + int(os.environ['PACELINE_RESTART']))")
    done = paceline("run", "-n", ranks, "--restarts", "1", "--", name)
    assert done.returncode == 5
    assert done.stderr.count("restart 1 of 1") == 1


def test_one_rank_that_may_be_started_again_needs_no_mpi(paceline, tmp_path):
    name = write(
        tmp_path,
        "import os, sys, paceline\n"
        "print(paceline.init().size, 'mpi4py.MPI' in sys.modules, sys.argv[1:],\n"
        "      os.path.isdir(os.environ['PACELINE_JOB_DIR']))\n",
    )
    done = paceline("run", "-n", "1", "--restarts", "1", "--", name, "a b")
    assert (done.stdout, done.stderr) == ("1 False ['a b'] True\n", "")


def test_a_lone_rank_that_was_killed_is_started_again(paceline, tmp_path):
    name = write(
        tmp_path,
        "import os\nif os.environ['PACELINE_RESTART'] == '0': os.kill(os.getpid(), 9)\n"
        "print('done')\n",
    )
    done = paceline("run", "-n", "1", "--restarts", "1", "--", name)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert re.fullmatch(
        r"paceline: rank 0 \(\S+\) was killed by signal 9 \(.*\); all ranks were ended\n"
        r"paceline: the job failed with code 137; restart 1 of 1\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("ranks", "code"),
    [(2, 75), (1, 2), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 75), (2, 2)))],
)
def test_what_would_be_no_different_is_not_started_again(paceline, tmp_path, ranks, code):
    name = write(tmp_path, f"import sys, paceline; paceline.init().barrier(); sys.exit({code})")
    done = paceline("run", "-n", ranks, "--restarts", "1", "--", name)
    assert done.returncode == code
    assert "restart" not in done.stderr
    if code == 75:  # ranks that saved and stopped make no noise
        assert (done.stdout, done.stderr) == ("", "")


def test_a_job_that_was_interrupted_is_not_started_again(tmp_path):
    name = write(tmp_path, "import os, time; os.write(1, b'up\\n'); time.sleep(3600)")
    words = ("run", "-n", "1", "--restarts", "2", "--", name)
    with started([PACELINE, *words], tmp_path) as job:
        assert job.stdout.readline() == "up\n"
        job.send_signal(signal.SIGINT)
        out, errors = job.communicate(timeout=90)
    assert (job.returncode, out) == (130, "")
    assert "paceline: interrupted; all ranks were ended" in errors
    assert "restart 1" not in errors


@pytest.mark.slow
def test_an_interrupt_in_the_pause_before_a_restart_ends_it(tmp_path):
    name = write(tmp_path, "import os; os.write(1, b'up\\n'); os._exit(3)")
    words = ("run", "-n", "1", "--restarts", "9", "--", name)
    with started([PACELINE, *words], tmp_path) as job:
        while "restart 4 of 9" not in job.stderr.readline():
            assert job.poll() is None
        job.send_signal(signal.SIGINT)  # in a pause of 8 s, which has just begun
        out, errors = job.communicate(timeout=90)
    assert (job.returncode, errors) == (130, "paceline: interrupted\n")
    assert out == "up\n" * 4, "it was not started again"


@pytest.mark.parametrize(
    ("ranks", "restarts"),
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0), (1, 1), (2, 0)))],
)
def test_odd_names_and_arguments_arrive_as_they_are(paceline, tmp_path, ranks, restarts):
    folder = tmp_path / ODD
    write(
        folder,
        "import json, os, sys, paceline\n"
        "said = [sys.argv, __file__, os.getcwd(), os.environ['ODD']]\n"
        "open(f'{sys.argv[2]}{paceline.init().rank}', 'w').write(json.dumps(said))\n",
    )
    script, out = str(folder / "program.py"), str(folder / "out")
    done = paceline(
        "run", "-n", ranks, "--restarts", restarts, "--", script, ODD, out, "", "--", "-n 3",
        cwd=folder, ODD=ODD,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(ranks):
        said = json.loads(Path(f"{out}{rank}").read_text())
        assert said == [[script, ODD, out, "", "--", "-n 3"], script, str(folder), ODD]
    names = ["out0", "out1"][:ranks]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "program.py"]
