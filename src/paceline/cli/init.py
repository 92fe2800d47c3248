"""`paceline init`: a folder to start from, which runs as it is."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path

from paceline.errors import ConfigError

_RUN_FILE = """\
model: model.py:build
data:
  train: model.py:train
  validation: model.py:validation
  batch_size: 32
epochs: 10
optimizer: {name: adam, lr: 3e-3}
schedule: cosine
rule: bsp  # or average, diloco, easgd, downpour, gossip
"""
_KINDS = {
    "loop": ("train.py", "complete_loop.py", "run -n 2 -- train.py"),
    "trainer": ("model.py", None, "train run.yaml -n 2"),
    "keras": ("train.py", "keras_fit.py", "run -n 2 -- train.py"),
    "mpi-learn": ("train.py", "mpi_learn_script.py", "run -n 3 -- train.py"),
}
"""By kind: the program's name, that of the example which it is, and how it is started."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "init",
        description="Write a program to start from, a job script and a README into DIR. It runs as "
        "it is. Example: paceline init mine",
        usage="paceline init DIR [--kind KIND]",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, help="a new or empty folder")
    parser.add_argument(
        "--kind",
        choices=tuple(_KINDS),
        default="loop",
        help="your own loop, a model and a run file for `paceline train`, Keras' fit, or "
        "mpi_learn's classes (default loop)",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    folder: Path = args.dir
    contents = _contents(args.kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; name a new folder")
        for name, text in contents.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    (folder / "job.sh").chmod(0o755)
    start = _KINDS[args.kind][2]
    sys.stdout.write(f"wrote {', '.join(contents)}; try it: cd {folder} && paceline {start}\n")
    return 0


def _contents(kind: str) -> dict[str, str]:
    name, example, start = _KINDS[kind]
    text = (files("paceline.cli") / "starts" / f"{kind}.txt").read_text()
    text = text.replace(f"examples/{example}", name)
    run_file = {"run.yaml": _RUN_FILE} if kind == "trainer" else {}
    return {name: text, **run_file, "job.sh": _job(start), "README.md": _readme(start)}


def _job(start: str) -> str:
    command, _, rest = start.partition(" ")
    inner = f"{command} {rest}".replace(" -n 2", "").replace(" -n 3", "")
    return (
        "#!/bin/sh\n"
        "# Hands the program in to a scheduler: ./job.sh, or ./job.sh sge (pbs, lsf).\n"
        'exec paceline submit "${1:-slurm}" --nodes 2 --ranks-per-node 4 --time 1h -- '
        f"{inner}\n"
    )


def _readme(start: str) -> str:
    return (
        f"On this machine: `paceline {start}` (-n: how many ranks). Will it run here? `paceline "
        "doctor`.\nOn a cluster: `./job.sh`, which asks for 2 nodes and 4 ranks on each; "
        "edit it.\nWhat to change, and what every call means: docs/own-loop.md, docs/keras.md and "
        "docs/settings.md of Paceline.\n"
    )
