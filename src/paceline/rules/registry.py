"""Rules by name: those that come along, and users' own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping

from paceline.core.suggestions import unknown_name, unknown_settings
from paceline.core.user_code import load_function
from paceline.errors import ConfigError
from paceline.rules.average import Average
from paceline.rules.base import CentreRule, GossipRule, GradientRule, Rule, WeightRule
from paceline.rules.bsp import BSP
from paceline.rules.diloco import DiLoCo
from paceline.rules.downpour import Downpour
from paceline.rules.easgd import EASGD
from paceline.rules.gossip import Gossip

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (BSP, Average, DiLoCo, EASGD, Downpour, Gossip)
}
FAMILIES = (GradientRule, WeightRule, CentreRule, GossipRule)
_loaded: dict[type[Rule], str] = {}
"""Users' rules, and how they were named."""


def make_rule(spec: str | Mapping[str, object] | Rule, **given: object) -> Rule:
    """A rule from its name, from `{"name": ..., setting: value, ...}`, or as it is; a name may have
    its settings as keywords.

    A name is one of ours, or `file.py:Class` or `package.module:Class` for your own.

    >>> make_rule({"name": "gossip", "probability": 0.5})
    Gossip(probability=0.5)
    >>> make_rule("gossip", probability=0.5)
    Gossip(probability=0.5)
    """
    if given and not isinstance(spec, str):
        raise ConfigError(
            f"{', '.join(given)}: settings by keyword go with the name of a rule, and rule is "
            f"{spec!r}; put them there"
        )
    if isinstance(spec, Rule):
        _check_class(type(spec), type(spec).__qualname__)
        return spec
    if isinstance(spec, str):
        spec = {"name": spec, **given}
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise ConfigError(f"rule is {spec!r}, expected a name ({', '.join(RULES)})")
    settings = dict(spec)
    kind = _find(settings.pop("name"))
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if wrong := unknown_settings(f"rule {kind.name}", settings, known):
        moved = [key for key in settings if key not in known and key in _ELSEWHERE]
        hint = f". Did you mean {_ELSEWHERE[moved[0]]}?" if moved else ""
        raise ConfigError(wrong + hint)
    return kind(**settings)


_ELSEWHERE = {
    "wire": "exchange.wire",
    "servers": "exchange.servers",
    "overlap": "exchange.overlap",
    "rank": "exchange.powersgd_rank",
    "share": "exchange.share",
    "what": "rule average, which averages weights",
}
"""What is no setting of any rule, though people look for it there."""


def describe_rule(rule: Rule) -> dict[str, object]:
    """Name and settings, as `make_rule` takes them."""
    settings = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}  # type: ignore[arg-type]
    return {"name": _spec_of(type(rule)), **settings}


def _spec_of(kind: type[Rule]) -> str:
    if RULES.get(kind.name) is kind:
        return kind.name
    return _loaded.get(kind, f"{kind.__module__}:{kind.__qualname__}")


def _find(name: object) -> type[Rule]:
    if isinstance(name, str) and ":" in name:
        kind = load_function(name)
        _check_class(kind, name)
        _loaded[kind] = name  # type: ignore[index]
        return kind  # type: ignore[return-value]
    if name not in RULES:
        raise ConfigError(unknown_name("rule", name, RULES))
    return RULES[name]


def _check_class(kind: object, name: str) -> None:
    """A ConfigError unless it is a dataclass derived from a family, with nothing left abstract."""
    families = ", ".join(family.__name__ for family in FAMILIES)
    if not inspect.isclass(kind) or not issubclass(kind, FAMILIES):
        raise ConfigError(f"rule {name} is no rule: derive a class from one of: {families}")
    if not dataclasses.is_dataclass(kind):
        raise ConfigError(f"rule {name} is no dataclass; decorate it with @dataclass(frozen=True)")
    missing = sorted(kind.__abstractmethods__)
    if missing:
        raise ConfigError(f"rule {name} lacks {', '.join(missing)}")
