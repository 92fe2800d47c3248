"""`paceline submit`, up to the point where a scheduler is asked."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.cli import submit as submit_command
from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers import submit as handing_in
from paceline.cluster.schedulers.interface import CommandReply


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # no scheduler of this machine is asked
    return tmp_path


@pytest.fixture
def script(capsys):
    """The script of a command, and the words that it runs."""

    def render(*words, scheduler="slurm"):
        code = main(["submit", scheduler, "--dry-run", *words])
        out, errors = capsys.readouterr()
        assert (code, errors) == (0, "")
        (line,) = re.findall(r"^(.* -m paceline .*) &$", out, re.MULTILINE)
        return out, shlex.split(line)

    return render


@pytest.fixture
def refused(capsys):
    def submit(*words, scheduler="slurm"):
        code = main(["submit", scheduler, "--dry-run", *words])
        out, errors = capsys.readouterr()
        assert (code, out) == (2, "")
        return errors

    return submit


def test_a_training_is_told_its_directory_and_to_go_on(script, place):
    out, words = script("--nodes", "2", "--ranks-per-node", "3", "--threads", "2", "--", "train")
    assert words[:8] == [
        *(sys.executable, "-m", "paceline", "train", "-n", "6", "--threads", "2"),
    ]
    assert words[8] == "--run-dir"
    assert re.fullmatch(r"\d{8}-\d{6}-mnist-bsp", Path(words[9]).name)
    assert Path(words[9]).parent == place / "runs"
    assert words[10:] == ["--resume", "auto"]
    assert f"run_dir={words[9]}\n" in out
    assert not (place / "runs").exists()  # nothing is made by --dry-run


def test_the_two_dashes_may_be_left_away(script):
    assert script("--nodes", "2", "train", "mlp", "--epochs", "3")[1][-3:] == [
        "mlp",
        "--epochs",
        "3",
    ]


def test_a_directory_that_is_given_is_kept(script, place):
    out, words = script("--", "train", "mnist", "--run-dir", "mine")
    assert f"run_dir={place}/mine\n" in out
    assert words[-3:] == ["mnist", "--run-dir", "mine"]


def test_an_earlier_run_is_not_gone_on_with_unasked(script, refused, place):
    (place / "mine").mkdir()
    (place / "mine" / "config.yaml").write_text("model: mnist\n")
    assert "holds an earlier run" in refused("--", "train", "--run-dir", "mine")
    assert script("--", "train", "--run-dir", "mine", "--resume", "auto")
    out, words = script("--", "train", "--resume", "mine")
    assert f"run_dir={place}/mine\n" in out
    assert words[-2:] == ["--resume", "mine"]
    assert "--run-dir" not in words


def test_a_script_is_run_as_it_is(script, place):
    (place / "my script.py").touch()
    out, words = script("--", "run", "--", "my script.py", "--lr", "$(x)")
    assert words[3:] == [
        *("run", "-n", "1", "--threads", "1", "--", "my script.py", "--lr", "$(x)"),
    ]
    assert "--job-name=my-script\n" in out
    assert "--no-requeue" in out
    assert "#SBATCH --requeue" in script("--requeue", "2", "--", "run", "my script.py")[0]


def test_arrays(script, place):
    out, words = script(
        *("--array-seeds", "1-2", "--sweep", "optimizer.lr=0.1,0.2"),
        *("--", "train", "mnist", "--run-dir", "a b", "--set", "epochs=3"),
    )
    assert words[-1] == "${added[@]}"
    cases = re.findall(r"^    (\d)\) added=\((.*)\) ;;$", out, re.MULTILINE)
    assert [number for number, _ in cases] == ["1", "2", "3", "4"]
    assert shlex.split(cases[2][1]) == [
        *("--run-dir", f"{place}/a b/3", "--set", "optimizer.lr=0.2", "--set", "seed=1"),
    ]


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        (("--nodes", "2"), ["the command after the resources is train or run, and nothing"]),
        (("--", "export", "x"), ["is train or run, not 'export'"]),
        (("--", "run", "none.py"), ["the script none.py is not a file here"]),
        (("--array-seeds", "1-2", "--", "run", "--", "-m", "x"), ["are settings of train"]),
        (("--", "train", "--epochs", "0"), ["epochs is 0, expected: greater than or equal to 1"]),
        (
            ("--nodes", "x", "--time", "5", "--", "train", "--set", "rule.every=1"),
            ["rule is", "--nodes is 'x'", "--time is '5'"],
        ),
        (("--nodes", "2", "--", "train", "-n", "3"), ["says -n 3, the resources 2 nodes x 1"]),
        (("--", "train", "--threads", "3"), ["says --threads 3, the resources 1"]),
        (("--", "train", "--hosts", "a,b"), ["the scheduler chooses the hosts"]),
        (("--sweep", "epochs=1,0,-1", "--", "train"), ["epochs is 0", "epochs is -1"]),
        (("--sweep", "nonsense=1", "--", "train"), ["nonsense is not a setting"]),
        (("--array-seeds", "1", "--", "train", "--set", "run_dir=x"), ["give --run-dir"]),
        (("--array-seeds", "1", "--", "train", "--resume", "old"), ["old"]),
        (("--array-seeds", "x", "--nodes", "0", "--", "train"), ["--array-seeds", "--nodes is"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_anything_is_submitted(refused, words, complaints):
    said = refused(*words)
    for complaint in complaints:
        assert complaint in said


def test_words_that_train_does_not_know_end_with_its_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["submit", "slurm", "--dry-run", "--", "train", "--epoch-count", "3"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --epoch-count" in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_there_is_help(scheduler, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["submit", scheduler, "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--memory-per-rank SIZE" in out
    assert ("--pe" in out) == (scheduler == "sge")
    assert ("not on a real cluster yet" in out) == (scheduler in ("pbs", "lsf"))


def test_the_place_of_data_goes_along(script, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", "/my data")
    assert "\nexport PACELINE_DATA='/my data'\n" in script("--", "train")[0]
    given = script("--env", "PACELINE_DATA=/other", "--", "train")[0]
    assert given.index("='/my data'") < given.index("=/other")  # the last one counts


def test_the_job_is_described(monkeypatch, capsys, place):
    monkeypatch.setattr(handing_in, "ask_scheduler", lambda *_: CommandReply(0, "12\n"))
    monkeypatch.setattr(submit_command, "ask_scheduler", lambda *_: CommandReply(None, ""))
    words = ("--nodes", "2", "--array-seeds", "1-3", "--", "train", "--run-dir", "a b")
    assert main(["submit", "slurm", *words]) == 0
    assert capsys.readouterr().out == (
        "job 12 (mnist-bsp) submitted: 2 nodes x 1 rank x 1 thread, 3 tasks\n"
        "run directory: 'a b'\n"
        "log:           tail -F 'a b/job-12.1.log'\n"
        "watch:         squeue --jobs 12\n"
        "stop:          scancel 12\n"
        "save and stop: scancel --batch --signal=TERM 12\n"
        "resume:        cd 'a b' && sbatch job.sh\n"
    )
    assert (place / "a b" / "job.sh").read_text().startswith("#!/bin/bash\n#SBATCH --job-name=")
