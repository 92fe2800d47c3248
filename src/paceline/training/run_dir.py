"""The run directory: what a run leaves behind.

config.yaml    every setting
history.jsonl  a record per epoch
summary.json   the outcome
report.html    a page for people
events/        one JSONL file per rank
checkpoints/   where the run could go on, the newest ones
model.*        the trained model, in its framework's plain form
best.*         that of the epoch with the lowest val_loss, with keep: best
log.txt        what the terminal showed
README.md      how to load the model
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import yaml

from paceline.config.reading import read_yaml
from paceline.config.run import RunConfig
from paceline.core.files import json_safe
from paceline.core.trees import Tree
from paceline.errors import ConfigError
from paceline.observe import History, TimeSplit, write_atomically
from paceline.observe.trial import TRIAL
from paceline.training.claim import Claim


def find_run_dir(config: RunConfig) -> Path | None:
    """The directory of the run that `resume` means; None if it means none, and for a new one."""
    if config.resume is None:
        return None
    if config.resume != "auto":
        if config.run_dir is not None and Path(config.run_dir) != Path(config.resume):
            raise ConfigError(
                f"resume is {config.resume} and run_dir {config.run_dir}; a run goes on in its own "
                "directory: leave run_dir out"
            )
        return Path(config.resume).absolute()
    if config.run_dir is not None:
        return Path(config.run_dir).absolute()
    names = (path for path in Path("runs").glob(f"*-{config.short_name}*") if path.is_dir())
    same = (path for path in names if _is_run_of(config, path))
    unfinished = [p for p in same if (p / "checkpoints").is_dir() and not _is_finished(p)]
    return max(unfinished, default=None, key=lambda path: path.name)


def _is_run_of(config: RunConfig, path: Path) -> bool:
    """Whether the run there trains this model by this rule; its name alone may mislead."""
    try:
        was = read_yaml(path / "config.yaml")
    except ConfigError:
        return False
    now = config.describe()
    rule = was.get("rule")
    was_rule = rule.get("name") if isinstance(rule, dict) else rule
    return was.get("model") == now["model"] and was_rule == config.rule.name


def _is_finished(path: Path) -> bool:
    return (path / "summary.json").exists()


def make_run_dir(config: RunConfig, resumed: Path | None = None) -> tuple[Path, Claim]:
    """Make the directory, a fresh one unless the config names it, claim it, and write config.yaml.

    A run that is resumed goes on in its own.
    """
    path = resumed or Path(config.run_dir or "runs")
    try:
        if resumed is None and config.run_dir is None:
            path = make_fresh(config)
        elif resumed is None and _is_used(path) and config.resume is None:
            raise ConfigError(
                f"run directory {path} holds an earlier run; choose another run_dir, or go on "
                f"with it: --resume {path}"
            )
        (path / "events").mkdir(parents=True, exist_ok=True)
        claim = Claim(path)
    except OSError as error:
        raise ConfigError(
            f"run directory {path} cannot be written: {error.strerror}; choose another run_dir"
        ) from None
    try:
        text = yaml.safe_dump(config.describe(), sort_keys=False)
        write_atomically(path / "config.yaml", text)
    except BaseException:
        claim.release()
        raise
    return path.absolute(), claim


def _is_used(path: Path) -> bool:
    return (path / "history.jsonl").exists() or any(path.glob("events/*.jsonl"))


def make_fresh(config: RunConfig) -> Path:
    """For example runs/20260131-154502-mnist-bsp, with a number behind it if that is taken."""
    top = Path(os.environ.get(TRIAL, "")) / "runs"  # a trial leaves nothing behind
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.short_name}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = top / f"{name}{suffix}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise ConfigError(f"a thousand runs named {name} exist already; set run_dir")


def summarise(history: History, ranks: int, rule: str, seconds: float, stopped: str | None) -> Tree:
    """The outcome of a run, as plain values."""
    last = history[-1] if history else None
    validated = next((r for r in reversed(history) if r.val_loss is not None), None)
    split = sum((record.time for record in history), TimeSplit())
    training_s = sum(record.seconds for record in history)
    samples = sum(record.samples for record in history)
    return {
        "val_loss": validated.val_loss if validated else None,
        "val_accuracy": validated.val_accuracy if validated else None,
        "train_loss": last.train_loss if last else None,
        "epochs": len(history),
        "seconds": seconds,
        "samples": samples,
        "samples_per_s": samples / training_s if training_s else 0.0,
        "ranks": ranks,
        "rule": rule,
        "stopped": stopped,
        "time": {
            "compute": split.compute,
            "wait": split.wait,
            "communication": split.communication,
            "data": split.data,
        },
    }


_LOADERS = {
    ".safetensors": "safetensors.torch.load_file('{model}'), or safetensors.numpy",
    ".npz": "numpy.load('{model}')",
    ".keras": "keras.saving.load_model('{model}')",
}


def write_outcome(path: Path, config: RunConfig, model: str, summary: Tree) -> None:
    """What came of the run, for programs, and how to load its `model`, for people."""
    loader = _LOADERS.get(Path(model).suffix, "{model}").format(model=model)
    name = config.model if isinstance(config.model, str) else config.short_name
    write_atomically(
        path / "README.md",
        f"A run of Paceline: {name} by rule {summary['rule']}, {summary['epochs']} epochs on "
        f"{summary['ranks']} ranks; summary.json has its outcome, log.txt what it reported.\n"
        f"Load the trained model in Python: {loader}\n"
        "Write it in another format: paceline export . model.pt\n",
    )
    write_json(path / "summary.json", summary)


def write_json(path: Path, content: Tree) -> None:
    """Write plain values; a number that is not finite becomes null."""
    write_atomically(path, json.dumps(json_safe(content), indent=1, allow_nan=False) + "\n")


def check_writable(path: Path) -> None:
    """Find out before a long run, not after it, that its outcome has no place to go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
