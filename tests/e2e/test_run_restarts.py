"""Jobs that save and stop, that are started again, and whose names are odd."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_environment

pytestmark = pytest.mark.timeout(90)

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


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_is_started_again_until_it_succeeds(paceline, tmp_path, ranks):
    name = write(tmp_path, FAIL_UNTIL)
    done = paceline("run", "-n", ranks, "--restarts", "3", "--", name, "2")
    assert done.returncode == 0, done.stderr
    said = [f"restart {restart} on {rank}" for restart in range(3) for rank in range(ranks)]
    assert sorted(done.stdout.splitlines()) == said
    assert re.findall("paceline: the job failed.*", done.stderr) == [
        "paceline: the job failed with code 1; restart 1 of 3",
        "paceline: the job failed with code 1; restart 2 of 3",
    ]


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
        "      os.path.isdir(os.environ['PACELINE_JOB_FOLDER']))\n",
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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("code", [2, 75])
def test_what_would_be_no_different_is_not_started_again(paceline, tmp_path, ranks, code):
    name = write(tmp_path, f"import sys, paceline; paceline.init().barrier(); sys.exit({code})")
    done = paceline("run", "-n", ranks, "--restarts", "1", "--", name)
    assert done.returncode == code
    assert "restart" not in done.stderr


def test_ranks_that_saved_and_stopped_make_no_noise(paceline, tmp_path):
    name = write(tmp_path, "import sys, paceline; paceline.init().barrier(); sys.exit(75)")
    done = paceline("run", "-n", "3", "--", name)
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "")


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "paceline"), *arguments],
        cwd=folder,
        env=clean_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_job_that_was_interrupted_is_not_started_again(tmp_path):
    name = write(tmp_path, "import os, time; os.write(1, b'up\\n'); time.sleep(60)")
    job = begin(tmp_path, "run", "-n", "1", "--restarts", "2", "--", name)
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=20)
    assert job.returncode == 130
    assert "paceline: interrupted; all ranks were ended" in errors
    assert "restart 1" not in errors


def test_an_interrupt_in_the_pause_before_a_restart_ends_it(tmp_path):
    name = write(tmp_path, "import os; os._exit(3)")
    job = begin(tmp_path, "run", "-n", "1", "--restarts", "9", "--", name)
    while "restart 4 of 9" not in job.stderr.readline():
        assert job.poll() is None
    began = time.monotonic()  # of a pause of 8 s
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=20)
    assert (job.returncode, errors) == (130, "paceline: interrupted\n")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2])
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


def test_a_negative_number_of_restarts_is_an_error(paceline, tmp_path):
    done = paceline("run", "-n", "1", "--restarts", "-1", "--", write(tmp_path, ""))
    assert done.returncode == 2
    assert "'-1' is not a number of 0 or more" in done.stderr
