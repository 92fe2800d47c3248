"""Requests that several tests render."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.cluster.schedulers.request import JobRequest


def request(**changes: Any) -> JobRequest:
    """A training on one rank."""
    known: dict[str, Any] = {
        "command": ("train", "-n", "1", "mnist"),
        "run_dir": Path("/home/user/runs/mnist-bsp"),
        "directory": Path("/home/user"),
        "python": "/home/user/venv/bin/python",
        "name": "mnist-bsp",
    }
    return JobRequest(**(known | changes))


PLAIN = request(requeue=10)
FULL = request(
    command=("train", "-n", "8", "--threads", "2", "mnist", "--target", "val_accuracy>=0.97"),
    name="digits",
    nodes=2,
    ranks_per_node=4,
    threads=2,
    memory_per_rank=1500,
    time=36 * 3600,
    save_time=300,
    queue="long",
    account="physics",
    gpus_per_node=2,
    modules=("gcc/12", "openmpi"),
    env=(("OMP_PROC_BIND", "false"), ("GREETING", "it's $HOME")),
    requeue=3,
    after=("17", "18"),
    pe="orte",
)
ARRAY = request(
    name="sweep",
    time=600,
    requeue=10,
    tasks=(
        ("--run-dir", "/home/user/runs/sweep/1", "--set", "seed=1"),
        ("--run-dir", "/home/user/runs/sweep/2", "--set", "seed=2"),
    ),
)
SCRIPT_ALONE = request(command=("run", "-n", "1", "--", "mine.py"), name="mine")
CASES = {"plain": PLAIN, "full": FULL, "array": ARRAY, "script": SCRIPT_ALONE}

NASTY = {
    "spaces": "a b",
    "quotes": """it's "big" """,
    "substitution": "$(touch pwned) `id` $HOME",
    "newline": "two\nlines",
    "directive": "x\n#$ -N other\n#SBATCH --nodes=9\n#BSUB -n 9\n#PBS -N other",
    "letters": "Grüße 数字 \u2028",
    "signs": "\\ % ! # & ; | < > ( ) { } * ? [ ] ~ = \t",
    "bytes": "\udcff",
    "dash": "-rf",
}
