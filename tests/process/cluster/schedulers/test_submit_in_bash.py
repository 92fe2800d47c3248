"""Job scripts as bash runs them, with small programs in the place of Python and the scheduler."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.job_requests import NASTY, request
from support.ranks import TESTS

from paceline.cluster.schedulers import SCHEDULERS

GOLDEN = TESTS / "unit" / "cluster" / "schedulers" / "golden"
VARIABLES = {
    "slurm": {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"},
    "sge": {"JOB_ID": "7", "SGE_TASK_ID": "2"},
    "pbs": {"PBS_JOBID": "7.server", "PBS_ARRAY_INDEX": "2"},
    "lsf": {"LSB_JOBID": "7", "LSB_JOBINDEX": "2"},
}
SAVES = """
trap 'echo saved; exit 75' USR1
touch ready
for i in $(seq 200); do sleep 0.05; done
"""
CODES_OF_REQUEUEING = {"slurm": 75, "sge": 99, "pbs": 75, "lsf": 99}
CANCELS = {"slurm": "TERM", "sge": "USR2", "pbs": "TERM", "lsf": "TERM"}


def sleeps(pid: int) -> bool:
    """Whether the process waits for something."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


class Job:
    """A script in a directory of its own, and what it left there."""

    def __init__(self, place: Path, scheduler: str, program: str, **changes):
        self.place, self.run_dir = place, changes.pop("run_dir", place / "run dir")
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (place / "bin").mkdir()
        self.add_program("python", program)
        self.add_program("scontrol", f'echo "$@" >>"{place}/asked"')
        self.add_program("qsub", f'echo "$@" $PACELINE_REQUEUES >>"{place}/asked"; echo 8.server')
        changes = {"directory": place, "python": str(place / "bin/python"), **changes}
        script = SCHEDULERS[scheduler].render(request(run_dir=self.run_dir, **changes))
        self.script = place / "job.sh"
        self.script.write_bytes(os.fsencode(script))
        path = f"{place / 'bin'}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(place)} | VARIABLES[scheduler]

    def add_program(self, name, text):
        (self.place / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.place / "bin" / name).chmod(0o755)

    def start(self, **env):
        return subprocess.Popen(
            ["bash", self.script], env=self.env | env, cwd="/", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, **env):
        """Exit code and output."""
        process = self.start(**env)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def signal_when_ready(self, name, **env):
        process = self.start(**env)
        end = time.monotonic() + 60
        # Bash heeds a signal that comes as `wait` begins only after it: so first it has to sleep
        # there, which it does nowhere else once the command is ready.
        while not ((self.place / "ready").exists() and sleeps(process.pid)):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(getattr(signal, f"SIG{name}"))
        process.communicate(timeout=60)
        return process.returncode

    def left(self, kind, number="7"):
        file = self.run_dir / f"job-{number}.{kind}"
        return file.read_text().strip() if file.exists() else None

    @property
    def asked(self):
        file = self.place / "asked"
        return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_bash_accepts_the_recorded_scripts(file):
    checked = subprocess.run(["bash", "-n", file], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_there_are_recorded_scripts_of_every_scheduler():
    assert {path.stem.split("-")[0] for path in GOLDEN.glob("*.sh")} == set(SCHEDULERS)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_command_s(tmp_path, scheduler, code):
    job = Job(tmp_path, scheduler, f"exit {code}", requeue=2)
    (job.run_dir / "job-7.exit").write_text("99")
    assert job.run()[0] == code
    assert job.left("exit") == str(code)


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_the_command_gets_its_words_as_they_are(tmp_path, value):
    place = tmp_path / value
    place.mkdir()
    program = 'printf "%s\\0" "$PWD" "$ODD" "$@" >words'
    words = ("run", "-n", "1", value, "plain")
    job = Job(tmp_path, "sge", program, command=words, directory=place, env=(("ODD", value),))
    code, out = job.run()
    assert code == 0, out
    told = (place / "words").read_bytes().split(b"\0")[:-1]
    assert list(map(os.fsdecode, told)) == [str(place), value, "-m", "paceline", *words]
    assert not (place / "pwned").exists()


@pytest.mark.parametrize("value", [v for v in NASTY.values() if "/" not in v], ids=NASTY)
def test_a_run_directory_of_any_name_gets_the_exit_code(tmp_path, value):
    job = Job(tmp_path, "slurm", "exit 4", run_dir=tmp_path / value)
    assert job.run()[0] == 4
    assert job.left("exit") == "4"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_warning_saves_and_requeues(tmp_path, scheduler):
    job = Job(tmp_path, scheduler, SAVES, requeue=2)
    assert job.signal_when_ready("USR1") == CODES_OF_REQUEUEING[scheduler]
    assert job.left("exit") is None  # it is not over
    if scheduler == "slurm":
        assert job.asked == ["requeue", "7"]
    elif scheduler == "pbs":
        assert job.asked[-1:] == ["1"]
        assert job.left("next") == "8"
    else:
        assert job.left("requeues") == "1"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_is_cancelled_saves_and_stays_ended(tmp_path, scheduler):
    job = Job(tmp_path, scheduler, SAVES, requeue=2)
    assert job.signal_when_ready(CANCELS[scheduler]) == 75
    assert job.left("exit") == "75"
    assert job.asked == []


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_lost_a_host_goes_back_into_the_queue(tmp_path, scheduler):
    job = Job(tmp_path, scheduler, "exit 68", requeue=2)
    _, out = job.run()
    assert "back into the queue, time 1 of at most 2" in out + (job.left("log") or "")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("code", ["1", "137"])
def test_a_job_that_fails_otherwise_stays_ended(tmp_path, scheduler, code):
    job = Job(tmp_path, scheduler, f"exit {code}", requeue=2)
    assert job.run()[0] == int(code)
    assert job.asked == []


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_requeueing_has_an_end(tmp_path, scheduler):
    job = Job(tmp_path, scheduler, "exit 75", requeue=2)
    (job.run_dir / "job-7.requeues").write_text("2")
    code, out = job.run(SLURM_RESTART_COUNT="2", PACELINE_REQUEUES="2")
    assert (code, job.left("exit"), job.asked) == (75, "75", [])
    said = out + (job.left("log") or "")
    assert "to go on, in" in said


def test_a_job_that_slurm_does_not_requeue_ends(tmp_path):
    job = Job(tmp_path, "slurm", "exit 75", requeue=2)
    job.add_program("scontrol", "exit 1")
    assert job.run()[0] == 75
    assert job.left("exit") == "75"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_task_adds_its_words(tmp_path, scheduler):
    tasks = (("--set", "a=1"), ("--set", "a=x y"))
    job = Job(tmp_path, scheduler, 'printf "%s\\n" "$@" >words', tasks=tasks)
    assert job.run()[0] == 0
    assert (tmp_path / "words").read_text().splitlines()[-2:] == ["--set", "a=x y"]
    assert job.left("exit", "7.2") == "0"


@pytest.mark.parametrize("scheduler", ["pbs", "sge"])
def test_some_are_warned_by_the_script_itself(tmp_path, scheduler):
    job = Job(tmp_path, scheduler, SAVES, requeue=2, time=5400, save_time=600)
    sleep = shutil.which("sleep")
    until = f'until [ -e "{tmp_path}/ready" ]; do {sleep} 0.05; done; set 1'
    job.add_program("sleep", f'[ "$1" != 4800 ] || {{ {until}; }}; exec {sleep} "$1"')
    code, out = job.run()
    assert code == CODES_OF_REQUEUEING[scheduler]
    assert "saved" in out + (job.left("log") or "")
    assert job.left("exit") is None


def test_the_number_of_a_pbs_array_is_cut_out(tmp_path):
    job = Job(tmp_path, "pbs", "exit 0", tasks=(("a",), ("b",)))
    job.run(PBS_JOBID="7[2].server")
    assert job.left("exit", "7.2") == "0"


def test_a_module_that_is_not_there_ends_the_job(tmp_path):
    job = Job(tmp_path, "slurm", "exit 0", modules=("none",))
    job.add_program("module", "exit 5")
    assert job.run()[0] == 1
    assert job.left("exit") == "1"


def test_a_directory_that_is_not_there_ends_the_job(tmp_path):
    job = Job(tmp_path, "slurm", "exit 0", directory=tmp_path / "none")
    assert job.run()[0] == 1
    assert job.left("exit") == "1"
