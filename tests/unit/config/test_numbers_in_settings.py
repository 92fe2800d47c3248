"""Booleans are not numbers, and numbers that no machine can mean are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config.reading import read_assignment, read_config, read_yaml
from paceline.errors import ConfigError

NUMBERS = [
    "epochs",
    "seed",
    "accumulate",
    "clip_norm",
    "validate_every",
    "keep_checkpoints",
    "checkpoint_every",
    "max_rejected",
    "check_replicas",
    "stall_warning_s",
    "threads",
    "events_every",
    "optimizer.lr",
    "schedule.warmup",
    "stop.patience",
    "data.batch_size",
    "data.prefetch",
    "data.loaders",
    "data.cache_limit",
    "data.shuffle_buffer",
]


@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_no_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is True, expected: a number"):
        read_config(read_assignment(f"{name}=true"))


def test_true_among_the_epochs_of_a_step_schedule_is_no_number() -> None:
    schedule = {"name": "step", "at": [1, True]}
    with pytest.raises(ConfigError, match=r"schedule.at is \[1, True\], expected: numbers"):
        read_config({"schedule": schedule})


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "average", "every": True},
        {"name": "diloco", "every": True},
        {"name": "easgd", "every": True},
        {"name": "easgd", "beta": True},
        {"name": "downpour", "push_every": True},
        {"name": "gossip", "probability": True},
    ],
    ids=str,
)
def test_true_is_no_number_in_a_rule(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="True, expected"):
        read_config({"rule": rule})


def test_flags_stay_flags() -> None:
    config = read_config(
        {"compile": True, "exchange": {"share": False}, "data": {"shuffle": False}}
    )
    assert (config.compile, config.exchange.share, config.data.shuffle) == (True, False, False)
    assert read_config({"optimizer": {"name": "sgd", "nesterov": True}})


@pytest.mark.parametrize(
    "name",
    [
        "epochs",
        "accumulate",
        "keep_checkpoints",
        "threads",
        "stall_warning_s",
        "stall_timeout_s",
        "data.batch_size",
        "data.validation_batch_size",
        "data.prefetch",
        "data.loaders",
    ],
)
def test_a_number_that_no_machine_can_mean_is_refused_with_the_bound(name: str) -> None:
    expected = rf"{name} is 1000000000000.*expected: less than or equal to \d+"
    with pytest.raises(ConfigError, match=expected):
        read_config(read_assignment(f"{name}=1000000000000"))


def test_an_empty_run_file_says_what_a_run_file_needs(tmp_path: Path) -> None:
    for content in ("", "# nothing yet\n", "---\n", "{}\n"):
        file = tmp_path / "run.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"run\.yaml is empty.*model.*data"):
            read_yaml(file)
