"""`paceline train`: train a model by its name, on data by its name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.rank_options import add_rank_options, read_rank_options
from paceline.cluster.detect import detect
from paceline.errors import Interrupted
from paceline.launch.ranks import start_or_join
from paceline.models import MODELS
from paceline.rules import RULES
from paceline.runtime.job_dir import RESTART

if TYPE_CHECKING:
    from paceline.config.run import RunConfig


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--rule", "rule", {"help": f"how the ranks keep pace: {', '.join(RULES)} (default bsp)"}),
    ("--epochs", "epochs", {"type": int, "help": "times through the training data (default 5)"}),
    (
        "--weights",
        "weights",
        {"metavar": "FILE", "help": "torch: begin with this state_dict (.safetensors, .pt)"},
    ),
    (
        "--compile",
        "compile",
        {"action": "store_const", "const": True, "help": "torch: let torch.compile make it quick"},
    ),
    (
        "--precision",
        "precision",
        {"help": "torch: float32, or bfloat16 for the layers; weights stay float32 (default)"},
    ),
    (
        "--batch-size",
        "data.batch_size",
        {"type": int, "help": "samples per rank and step (default 64)"},
    ),
    (
        "--optimizer",
        "optimizer.name",
        {"help": "sgd, adam, adamw, ... any of torch.optim (default sgd)"},
    ),
    (
        "--lr",
        "optimizer.lr",
        {"type": float, "help": "learning rate (default 0.05 for sgd, else the optimizer's own)"},
    ),
    (
        "--momentum",
        "optimizer.momentum",
        {"type": float, "help": "of the optimizer (default 0.9 for sgd)"},
    ),
    (
        "--schedule",
        "schedule",
        {"help": "learning rate over time: constant, step or cosine (default constant)"},
    ),
    (
        "--warmup",
        "schedule.warmup",
        {"type": float, "help": "epochs in which the rate rises from 0 (default 0)"},
    ),
    (
        "--loss",
        "loss",
        {"help": "cross_entropy, mse, mae, huber, nll, ... (default cross_entropy)"},
    ),
    (
        "--accumulate",
        "accumulate",
        {"type": int, "help": "batches per rank added up for one step (default 1)"},
    ),
    (
        "--clip-norm",
        "clip_norm",
        {"type": float, "help": "largest norm of the averaged gradient (default: none)"},
    ),
    (
        "--patience",
        "stop.patience",
        {"type": int, "help": "stop after so many validations without a lower val_loss"},
    ),
    (
        "--target",
        "stop.target",
        {"help": "stop when reached, for example 'val_accuracy>=0.97'"},
    ),
    (
        "--validate-every",
        "validate_every",
        {"type": int, "help": "epochs between validations (default 1)"},
    ),
    (
        "--checkpoint-every",
        "checkpoint_every",
        {
            "type": _number_or_text,
            "help": "save every epoch, N steps, or a time as 10m (default: only when told to end)",
        },
    ),
    (
        "--keep-checkpoints",
        "keep_checkpoints",
        {"type": int, "metavar": "K", "help": "keep the newest K (default 2)"},
    ),
    (
        "--max-time",
        "max_time",
        {"help": "save and end after that time, as 90m, with exit code 75"},
    ),
    (
        "--max-rejected",
        "max_rejected",
        {
            "type": int,
            "metavar": "N",
            "help": "batches a rank may reject for a loss or gradients that are not finite "
            "(default 10)",
        },
    ),
    (
        "--check-replicas",
        "check_replicas",
        {"type": int, "metavar": "N", "help": "compare the replicas every N steps (bsp)"},
    ),
    ("--seed", "seed", {"type": int, "help": "of model, data order and dropout (default 1)"}),
    (
        "--data-dir",
        "data.dir",
        {"help": "where the full MNIST lies (default: $PACELINE_DATA, then the cache)"},
    ),
    (
        "--cache-dir",
        "data.cache_dir",
        {"help": "copy the data files once to this folder of each node, for example /dev/shm/me"},
    ),
    (
        "--run-dir",
        "run_dir",
        {"help": "where to write config, history, events and model (default: a new one in runs/)"},
    ),
    (
        "--progress",
        "progress",
        {"help": "auto, bar, plain or off (default auto: a bar on a terminal)"},
    ),
)
"""A flag, the setting it stands for, and its help."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        description="Train MODEL on TRAIN, validate on VAL. Example: paceline train mnist -n 2",
        epilog="All settings can be given in a YAML file (--config) or by --set; flags win over "
        "the file, --set over flags. Exit code: 0 done, 2 wrong settings, 75 told to end (saved; "
        "--resume goes on), 130 the same by Ctrl-C, 1 anything else.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{', '.join(MODELS)}, file.py:function, package.module:function, or a YAML run file",
    )
    parser.add_argument(
        "train",
        nargs="?",
        metavar="TRAIN",
        help="digits, mnist, a file (.h5, .npz, .npy, .parquet, .csv, .tar), a list of files, a "
        "folder of images or file.py:function",
    )
    parser.add_argument("validation", nargs="?", metavar="VAL", help="the same kinds as TRAIN")
    add_rank_options(parser)
    for flag, setting, options in FLAGS:
        usual = {"metavar": flag.removeprefix("--").upper().replace("-", "_")}
        parser.add_argument(flag, dest=setting, **(usual | options))
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="DIR",
        help="go on with the run in DIR, with its settings unless others are given; auto: with "
        "the newest checkpoint in --run-dir, or of the newest such run in runs/, if there is one",
    )
    parser.add_argument("--config", metavar="RUN.yaml", help="settings of the run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, for example --set optimizer.weight_decay=1e-4; may be repeated",
    )
    parser.add_argument("--summary", metavar="FILE.json", help="write the outcome for scripts")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.cli.train_settings import read_levels
    from paceline.config.reading import read_config

    levels, told = read_levels(args)
    _tell(told)
    config = read_config(*levels)  # in the launcher too: wrong settings need no ranks to be found
    if args.restarts and not detect().launched:
        config, given = _fix_run_dir(config, given)
    return start_or_join(
        read_rank_options(args),
        given,
        lambda: _train(config, args.summary),
        lambda: [*given, "--resume", "auto"],
    )


def _fix_run_dir(config: RunConfig, given: list[str]) -> tuple[RunConfig, list[str]]:
    """Runs that are started again must know their directory."""
    from paceline.training.run_dir import find_run_dir, make_fresh

    if config.resume not in (None, "auto"):
        return config, given
    found = find_run_dir(config) or Path(config.run_dir or make_fresh(config))
    config = config.model_copy(update={"run_dir": str(found)})
    return config, [*given, "--run-dir", str(found)]


def _tell(lines: Sequence[str]) -> None:
    """What became of an old run file: said once, by the launcher or by the first rank."""
    if lines and RESTART not in os.environ and not detect().rank:
        sys.stderr.write("paceline: " + "\n  ".join(lines) + "\n")
        sys.stderr.flush()


def _train(config: RunConfig, summary: str | None) -> int:
    from paceline.comm.rank0 import on_rank0
    from paceline.observe import render_final
    from paceline.observe.progress import has_terminal, read_width
    from paceline.runtime.failure import fail
    from paceline.runtime.world import init
    from paceline.training.loop.run import REMEDY
    from paceline.training.run_dir import check_writable, write_json
    from paceline.training.trainer import Trainer

    world = init()
    try:
        if summary is not None:
            on_rank0(world, lambda: check_writable(Path(summary)))
        result = Trainer(config=config).fit()
        if world.rank == 0:
            if summary is not None:
                write_json(Path(summary), result.summary)
            terminal = has_terminal(os.environ, sys.stdout)
            width = read_width(os.environ)
            render_final(result.history, sys.stdout, terminal, width, world.size)
            sys.stdout.write(f"run directory: {_short(result.run_dir)}\n")
            sys.stdout.flush()
            if result.summary["warning"] is not None:
                sys.stderr.write(f"paceline: warning: {result.summary['warning']}; {REMEDY}\n")
    except Interrupted as error:  # on all ranks: nobody waits
        if world.rank == 0:
            sys.stdout.flush()
            sys.stderr.write(f"paceline: {error}\n")
            sys.stderr.flush()
        return error.code
    except BaseException as error:  # also SystemExit, from the user's model: the others wait
        if world.size == 1:
            raise
        fail(world, error)
    return 0


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
