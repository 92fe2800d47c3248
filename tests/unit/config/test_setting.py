"""Settings are described by the fields of their classes, pydantic's or dataclasses."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from paceline.config.flags import SETTINGS, add_flags, default_of, help_of, read_flags
from paceline.config.setting import (
    Flag,
    Group,
    Values,
    describe_settings,
    field_docstrings,
    field_names,
    sections_of,
)


@dataclass(frozen=True)
class Transport:
    wire: Literal["float32", "int8"] = "float32"
    """What gradients travel in."""
    servers: Annotated[int | None, Values("a few")] = None
    """How many there are (default: one per node).

    More are seldom better."""


class Slow(BaseModel):
    name: Literal["slow"] = "slow"
    """Which it is."""
    pause_s: float = Field(0.5, ge=0, le=1)


class Fast(Slow):
    name: Literal["fast"] = "fast"  # type: ignore[assignment]


class Config(BaseModel):
    steps: Annotated[int, Group("First"), Flag("--steps")] = Field(3, gt=0, le=10**6)
    """CPU steps, 100% of them."""
    transport: Annotated[Transport, Group("Second")] = Transport()
    kind: Slow | Fast = Slow()


SAID = {setting.key: setting for setting in describe_settings(Config)}


def test_sections_are_walked_in_order_whatever_class_they_are():
    assert list(SAID) == [
        "steps",
        "transport.wire",
        "transport.servers",
        "kind.name",
        "kind.pause_s",
    ]
    assert [setting.group for setting in SAID.values()] == ["First", *["Second"] * 4]
    assert sections_of(Config.model_fields["kind"].annotation) == (Slow, Fast)
    assert field_names(Transport) == ["wire", "servers"]


def test_docstrings_of_fields_are_summary_and_details():
    servers = SAID["transport.servers"]
    assert servers.summary == "How many there are (default: one per node)"
    assert servers.default_in_words == "one per node"
    assert servers.details == "More are seldom better."
    assert field_docstrings(Fast) == {"name": "Which it is."}  # its own has none
    assert SAID["kind.pause_s"].summary == ""


def test_types_bounds_and_choices_are_those_of_the_annotations():
    assert SAID["steps"].types == {int}
    assert SAID["steps"].bounds == ("> 0",)  # nobody reaches the other
    assert SAID["kind.pause_s"].bounds == ("≥ 0", "≤ 1")
    assert SAID["transport.wire"].names == ("float32", "int8")
    assert SAID["kind.name"].names == ("slow", "fast")
    assert SAID["transport.servers"].values == "a few"


def test_the_help_has_choices_and_default_once():
    assert help_of(SAID["steps"]) == "CPU steps, 100%% of them (default 3)"
    assert help_of(SAID["transport.wire"]) == (
        "what gradients travel in (float32, int8; default float32)"
    )
    assert help_of(SAID["transport.servers"]) == "how many there are (default: one per node)"
    assert default_of(SAID["kind.pause_s"]) == "0.5"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_of_a_run_is_described(setting):
    assert setting.summary
    assert setting.group
    assert not setting.summary.endswith((".", ","))
    assert setting.default is not None or not setting.summary.endswith("(default: none)")


def test_flags_are_read_by_the_keys_of_their_settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int)
    add_flags(parser)
    words = "mnist digits --lr 1e-2 --compile --checkpoint-every 5 --resume --schedule step"
    given = read_flags(parser.parse_args([*words.split(), "--threads", "2"]))
    assert given == {
        "model": "mnist",
        "data.train": "digits",
        "optimizer.lr": 0.01,
        "compile": True,
        "checkpoint_every": 5,
        "resume": "auto",
        "schedule.name": "step",
        "threads": 2,
    }
    assert read_flags(parser.parse_args(["--checkpoint-every", "10m"])) == {
        "checkpoint_every": "10m"
    }
