"""The settings that `paceline train` was given: arguments, flags, a run file and `--set`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from paceline.config.flags import read_flags
from paceline.config.plain import is_placeholder
from paceline.config.reading import combine, nest, read_assignment, read_config, read_yaml
from paceline.config.run import RunConfig
from paceline.config.theano_mpi import read_run_file
from paceline.errors import ConfigError
from paceline.models import MODELS


def read_settings(args: argparse.Namespace) -> RunConfig:
    return read_config(*read_levels(args)[0])


def read_levels(args: argparse.Namespace) -> tuple[list[dict[str, object]], Sequence[str]]:
    """The settings, level by level, and how an old run file was read."""
    given = read_flags(args)
    _move_misread_model(given)
    file = _take_run_file(given, args.config)
    levels: list[dict[str, object]] = []
    notes: Sequence[str] = ()
    if given.get("resume", "auto") != "auto":
        named = "model" in given or file or any(word.startswith("model=") for word in args.set)
        levels.append(_settings_of(Path(str(given["resume"])), model_named=bool(named)))
    nested = [nest(key, value) for key, value in given.items()]
    here = combine(*nested, *map(read_assignment, args.set))
    if file is not None:
        settings, notes = read_run_file(Path(file), here)
        levels.append(settings)
    return [*levels, here], notes


_YAML = (".yaml", ".yml")
_POSITIONAL = ("model", "data.train", "data.validation")


def _move_misread_model(given: dict[str, object]) -> None:
    """`--resume mnist` means the model mnist, since --resume needs no directory."""
    word = str(given.get("resume", "auto"))
    if word == "auto" or Path(word).is_dir():
        return
    if word in MODELS or ":" in word or word.endswith(_YAML):
        if "data.validation" in given:
            raise ConfigError(f"--resume {word} is no directory; put MODEL TRAIN VAL before it")
        words = [word, *(given.pop(key) for key in _POSITIONAL if key in given)]
        given |= dict(zip(_POSITIONAL, words, strict=False)) | {"resume": "auto"}


def _take_run_file(given: dict[str, object], config: str | None) -> str | None:
    """The run file, which may be named in the place of the model."""
    if not str(given.get("model", "")).endswith(_YAML):
        return config
    if config is not None:
        raise ConfigError(f"two run files were named: {given['model']} and --config {config}")
    return str(given.pop("model"))


def _settings_of(run_dir: Path, model_named: bool) -> dict[str, object]:
    """Those that a run had; what was given in Python has to be given again."""
    if not (run_dir / "config.yaml").exists():
        raise ConfigError(f"{run_dir} is not the directory of a run: it has no config.yaml")
    settings = read_yaml(run_dir / "config.yaml")
    model = settings.get("model")
    if not model_named and is_placeholder(model):
        raise ConfigError(
            f"the model of {run_dir} was given in Python ({model[1:-1]}); name it: "
            f"paceline train file.py:function --resume {run_dir}; or start the script again with "
            "the setting resume, or paceline mpi-learn with --restore"
        )
    return {key: value for key, value in settings.items() if not is_placeholder(value)}
