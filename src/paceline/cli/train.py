"""`paceline train`: train a model by its name, on data by its name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.cli.ranks import add_rank_options, start_or_join
from paceline.errors import ConfigError, Interrupted
from paceline.launch.environment import detect
from paceline.launch.local import RESTART
from paceline.launch.world import fail, init
from paceline.models import MODELS
from paceline.rules import RULES
from paceline.training.config import RunConfig
from paceline.training.old_config import read_run_file
from paceline.training.rundir import find_run_dir, make_fresh
from paceline.training.settings import combine, read_assignment, read_config, read_yaml


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


_FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
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
        help="train a model on N ranks",
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
    for flag, setting, options in _FLAGS:
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
    levels, told = _read_levels(args)
    _tell(told)
    config = read_config(*levels)  # in the launcher too: wrong settings need no ranks to be found
    if args.restarts and not detect().launched:
        config, given = _fix_run_dir(config, given)
    return start_or_join(
        args, given, lambda: _train(config, args.summary), lambda: [*given, "--resume", "auto"]
    )


def _fix_run_dir(config: RunConfig, given: list[str]) -> tuple[RunConfig, list[str]]:
    """Runs that are started again must know their directory."""
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


def _read_settings(args: argparse.Namespace) -> RunConfig:
    return read_config(*_read_levels(args)[0])


def _read_levels(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """The settings, level by level, and what there is to say about an old run file."""
    layers: list[dict[str, Any]] = []
    told: Sequence[str] = ()
    model, file = args.model, args.config
    if model is not None and model.endswith((".yaml", ".yml")):
        if file is not None:
            raise ConfigError(f"two run files were named: {model} and --config {file}")
        model, file = None, model
    if args.resume not in (None, "auto"):
        named_anew = model or file or any(word.startswith("model=") for word in args.set)
        layers.append(_settings_of(Path(args.resume), bool(named_anew)))
    named = {"model": model, "data.train": args.train, "data.validation": args.validation}
    named |= {setting: vars(args)[setting] for _, setting, _ in _FLAGS}
    named |= {"threads": args.threads, "resume": args.resume}
    given = [_nested(key, value) for key, value in named.items() if value is not None]
    here = combine(*given, *map(read_assignment, args.set))
    if file is not None:
        settings, told = read_run_file(Path(file), here)
        layers.append(settings)
    return [*layers, here], told


def _settings_of(run_dir: Path, named_anew: bool) -> dict[str, Any]:
    """Those that a run had; what was given in Python has to be given again."""
    if not (run_dir / "config.yaml").exists():
        raise ConfigError(f"{run_dir} is not the directory of a run: it has no config.yaml")
    settings = read_yaml(run_dir / "config.yaml")
    if not named_anew and _was_an_object(settings.get("model")):
        raise ConfigError(
            f"the model of {run_dir} was given in Python ({settings['model'][1:-1]}); name it: "
            f"paceline train file.py:function --resume {run_dir}; or start the script again with "
            "the setting resume, or paceline mpi-learn with --restore"
        )
    return {key: value for key, value in settings.items() if not _was_an_object(value)}


def _was_an_object(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _train(config: RunConfig, summary: str | None) -> int:
    from paceline.observe import render_final
    from paceline.observe.progress import has_terminal, read_width
    from paceline.training.once import once
    from paceline.training.rundir import check_writable, write_json
    from paceline.training.trainer import Trainer

    world = init()
    try:
        if summary is not None:
            once(world, lambda: check_writable(Path(summary)))
        result = Trainer(config=config).fit()
        if world.rank == 0:
            if summary is not None:
                write_json(Path(summary), result.summary)
            terminal = has_terminal(os.environ, sys.stdout)
            width = read_width(os.environ)
            render_final(result.history, sys.stdout, terminal, width, world.size)
            sys.stdout.write(f"run directory: {_short(result.run_dir)}\n")
            sys.stdout.flush()
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
