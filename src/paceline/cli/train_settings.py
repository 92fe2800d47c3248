"""The settings that `paceline train` was given: by name, by flags, by a run file, by `--set`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.cli.train import FLAGS
from paceline.config.reading import combine, read_assignment, read_config, read_yaml
from paceline.config.run import RunConfig
from paceline.config.theano_mpi import read_run_file
from paceline.errors import ConfigError
from paceline.models import MODELS


def read_settings(args: argparse.Namespace) -> RunConfig:
    return read_config(*read_levels(args)[0])


def read_levels(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """The settings, level by level, and what there is to say about an old run file."""
    _put_resume_right(args)
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
    named |= {setting: vars(args)[setting] for _, setting, _ in FLAGS}
    named |= {"threads": args.threads, "resume": args.resume}
    given = [_nested(key, value) for key, value in named.items() if value is not None]
    here = combine(*given, *map(read_assignment, args.set))
    if file is not None:
        settings, told = read_run_file(Path(file), here)
        layers.append(settings)
    return [*layers, here], told


def _put_resume_right(args: argparse.Namespace) -> None:
    """`--resume mnist` means the model mnist: --resume may stand without a directory."""
    given = args.resume
    if given in (None, "auto") or Path(given).is_dir():
        return
    if given in MODELS or ":" in given or given.endswith((".yaml", ".yml")):
        named = [word for word in (given, args.model, args.train) if word is not None]
        if args.validation is not None:
            raise ConfigError(f"--resume {given} is no directory; put MODEL TRAIN VAL before it")
        args.model, args.train, args.validation = [*named, None, None][:3]
        args.resume = "auto"


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
