"""The rules by which replicas keep pace: pure mathematics, and one registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paceline.core.suggestions import unknown_name, unknown_settings
from paceline.errors import ConfigError
from paceline.rules.average import Average
from paceline.rules.base import CentreRule, PushTerms
from paceline.rules.bsp import BSP
from paceline.rules.diloco import DiLoCo
from paceline.rules.downpour import Downpour
from paceline.rules.easgd import EASGD
from paceline.rules.gossip import Gossip
from paceline.rules.weights import State, WeightRule

Rule = BSP | Average | DiLoCo | EASGD | Downpour | Gossip
"""The type of all rules."""

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (BSP, Average, DiLoCo, EASGD, Downpour, Gossip)
}

__all__ = [
    "BSP",
    "EASGD",
    "RULES",
    "Average",
    "CentreRule",
    "DiLoCo",
    "Downpour",
    "Gossip",
    "PushTerms",
    "Rule",
    "State",
    "WeightRule",
    "make_rule",
]


def make_rule(spec: str | Mapping[str, Any] | Rule) -> Rule:
    """A rule from its name, from `{"name": ..., setting: value, ...}`, or as it is.

    >>> make_rule({"name": "gossip", "probability": 0.5})
    Gossip(probability=0.5, wire='float32')
    """
    if isinstance(spec, Rule):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise ConfigError(f"rule is {spec!r}, expected a name ({', '.join(RULES)})")
    settings = dict(spec)
    name = settings.pop("name")
    if name not in RULES:
        raise ConfigError(unknown_name("rule", name, RULES))
    known = [field.name for field in dataclasses.fields(RULES[name])]
    if wrong := unknown_settings(f"rule {name}", settings, known):
        raise ConfigError(wrong)
    return RULES[name](**settings)
