"""The command inside of `submit` and `tune`: checked now, not when a job starts hours later."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli import run, train
from paceline.cli.train_settings import read_settings
from paceline.cluster.schedulers.submit import free_run_dir
from paceline.cluster.schedulers.sweep import Settings
from paceline.config.run import RunConfig
from paceline.errors import ConfigError
from paceline.training.run_dir import find_run_dir

_COMMANDS = {"train": train, "run": run}


@dataclass(frozen=True)
class InnerCommand:
    """A command of Paceline that a job will run, without the number of its ranks and threads."""

    kind: str
    """train or run."""
    words: tuple[str, ...]
    """The arguments that follow it."""
    name: str
    """The job's name unless it gets another."""
    run_dir: Path
    is_new: bool = False
    """Whether we chose the directory's name, so nobody may have made it before the job."""
    ranks: int | None = None
    """As given to the command itself."""
    threads: int | None = None
    tasks: tuple[tuple[str, ...], ...] = ()
    """The arguments that each task of an array adds."""


def read_command(words: Sequence[str], tasks: Sequence[Settings]) -> InnerCommand:
    """Read `train ...` or `run ...` as a job will run it.

    A training gets its directory, and resumes from there: so the job can be started again.
    """
    args = parse_inner(words)
    if args is None:
        given = f"not {words[0]!r}" if words else "and nothing was given"
        raise ConfigError(
            f"the command after the resources is train or run, {given}; for example: "
            "paceline submit slurm --nodes 2 -- train mnist"
        )
    if args.hosts or args.hostfile:
        raise ConfigError("the scheduler chooses the hosts: omit --hosts and --hostfile")
    return (_read_train if words[0] == "train" else _read_run)(args, tuple(words[1:]), tasks)


def after_separator(words: Sequence[str]) -> list[str]:
    """The words of an inner command, without the `--` before it."""
    return list(words[1:] if words and words[0] == "--" else words)


def parse_inner(words: Sequence[str]) -> argparse.Namespace | None:
    """Parse `train ...` or `run ...` by its own parser, which exits if they are wrong.

    None for any other command, and for none.
    """
    if not words or words[0] not in _COMMANDS:
        return None
    parser = argparse.ArgumentParser(prog="paceline")
    _COMMANDS[words[0]].add_parser(parser.add_subparsers(dest="command", required=True))
    return parser.parse_args(list(words))


def _read_run(
    args: argparse.Namespace, words: tuple[str, ...], tasks: Sequence[Settings]
) -> InnerCommand:
    if tasks:
        raise ConfigError(
            "--array-seeds and --sweep are settings of train; a script of `run` has its own: "
            "submit it once for each, or read the number of the task in it (--extra)"
        )
    if args.script == "-m" and not args.arguments:
        raise ConfigError("-m needs the name of a module: run -- -m package.module")
    if args.script != "-m" and not Path(args.script).is_file():
        raise ConfigError(f"the script {args.script} is not a file here, in {Path.cwd()}")
    target = args.arguments[0] if args.script == "-m" else Path(args.script).stem
    name = _plain(target)
    run_dir = free_run_dir(name).absolute()
    return InnerCommand("run", words, name, run_dir, True, args.ranks, args.threads)


def _read_train(
    args: argparse.Namespace, words: tuple[str, ...], tasks: Sequence[Settings]
) -> InnerCommand:
    config = read_settings(args)
    name = _plain(config.short_name)
    run_dir, is_new = _run_dir(config, name, bool(tasks))
    if config.resume in (None, "auto"):
        words = ("--resume", "auto", *words)
        if not tasks and vars(args)["run_dir"] is None:
            words = ("--run-dir", str(run_dir), *words)
    adds = tuple(
        ("--run-dir", str(run_dir / str(number)), *_assigned(task))
        for number, task in enumerate(tasks, start=1)
    )
    _check_tasks(words, adds)
    return InnerCommand("train", words, name, run_dir, is_new, args.ranks, args.threads, adds)


def _assigned(settings: Settings) -> tuple[str, ...]:
    return tuple(word for key, value in settings for word in ("--set", f"{key}={value}"))


def _run_dir(config: RunConfig, name: str, is_array: bool) -> tuple[Path, bool]:
    """The directory, and whether it is a new one, named here."""
    if is_array and config.resume not in (None, "auto"):
        raise ConfigError(
            f"an array makes a run for each task, and --resume {config.resume} is one run; omit "
            "either (an array resumes when its script is submitted again)"
        )
    found = None if is_array else find_run_dir(config)
    if found is not None:
        return found, False
    path = Path(config.run_dir or free_run_dir(name)).absolute()
    used = path / "1" if is_array else path
    if config.resume is None and (used / "config.yaml").exists():
        raise ConfigError(
            f"run directory {path} holds an earlier run; choose another --run-dir, or resume "
            "it: --resume auto"
        )
    return path, config.run_dir is None


def _check_tasks(words: tuple[str, ...], adds: tuple[tuple[str, ...], ...]) -> None:
    """Read the settings of every task: all faults are reported at once."""
    faults: dict[str, None] = {}
    for task in adds:
        try:
            args = parse_inner(["train", *words, *task])
            assert args is not None
            config = read_settings(args)
        except ConfigError as error:
            faults[str(error)] = None
            continue
        if config.run_dir != task[1]:
            faults["run_dir is set by --set or swept; give --run-dir: tasks lie within it"] = None
    if faults:
        raise ConfigError("; ".join(faults))


def _plain(text: str) -> str:
    """A name that every scheduler takes.

    >>> _plain("my model (2)-bsp"), _plain("3d")
    ('my-model-2-bsp', 'run-3d')
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:60]
    return plain if plain[:1].isalpha() else f"run-{plain}"
