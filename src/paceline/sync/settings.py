"""How an exchange is carried out: its settings, and facts of the run it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from paceline.comm import World
from paceline.core.suggestions import unknown_settings
from paceline.core.trees import Tree
from paceline.errors import ConfigError
from paceline.rules import ExchangeKind, Rule
from paceline.sync.saved import SavedCentre

_log = logging.getLogger("paceline.sync")

Wire = Literal["float32", "bfloat16", "float16", "int8", "powersgd"]
WIRES = ("float32", "bfloat16", "float16", "int8")
"""The formats in which vectors travel."""
POWERSGD = "powersgd"
"""Gradients as products of matrices; what one step leaves out, later ones bring."""
DEFAULT_POWERSGD_RANK = 4

Fail = Callable[[World, BaseException], object]
"""Ends all ranks of a world for an error of this one."""


def _check(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise ConfigError(f"exchange.{name} is {value!r}, expected {expected}")


def _check_whole(name: str, value: object, least: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _check(name, value, value is None or fits, f"a whole number of {least} or more")


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """How ranks exchange what the rule asks for. Nothing here changes the mathematics, except that
    a lossy wire rounds."""

    share: bool = True
    """With `bsp`, the ranks of a node share one copy of parameters and optimizer state."""
    overlap: bool | None = None
    """Exchange while computing goes on (default: true for the gradients of a run; false for your
    own loop and for a centre)."""
    wire: Wire = "float32"
    """Format of vectors between nodes; `powersgd` is for `bsp` only.

    See [rules.md](rules.md#fewer-bytes)."""
    powersgd_rank: int | None = None
    """With the wire `powersgd`: rank of its matrices (default: 4)."""
    servers: int | None = None
    """With a rule that has a centre: ranks that hold it and do not train; with 0 the workers hold
    it (default: Paceline decides).

    See [rules.md](rules.md#the-centre)."""

    def __post_init__(self) -> None:
        _check("share", self.share, isinstance(self.share, bool), "true or false")
        given = self.overlap is None or isinstance(self.overlap, bool)
        _check("overlap", self.overlap, given, "true or false")
        choices = (*WIRES, POWERSGD)
        _check("wire", self.wire, self.wire in choices, f"one of: {', '.join(choices)}")
        _check_whole("powersgd_rank", self.powersgd_rank, least=1)
        _check_whole("servers", self.servers, least=0)
        if self.wire != POWERSGD and self.powersgd_rank is not None:
            raise ConfigError(
                f"exchange.powersgd_rank is {self.powersgd_rank} and exchange.wire {self.wire}, "
                "which has no rank; set exchange.wire=powersgd, or omit the rank"
            )

    @property
    def lossy(self) -> bool:
        """Whether vectors are rounded on their way."""
        return self.wire != "float32"

    @property
    def matrix_rank(self) -> int | None:
        """Of the matrices that gradients travel as; None where they travel whole."""
        return (self.powersgd_rank or DEFAULT_POWERSGD_RANK) if self.wire == POWERSGD else None


USED: dict[ExchangeKind, frozenset[str]] = {
    "gradients": frozenset({"share", "overlap", "wire", "powersgd_rank"}),
    "weights": frozenset({"wire"}),
    "centre": frozenset({"servers", "overlap", "wire"}),
    "gossip": frozenset({"wire"}),
}
"""Which settings a kind of exchange reads; any other is an error."""


def make_settings(given: Mapping[str, object] | ExchangeSettings | None) -> ExchangeSettings:
    """Settings from `{"wire": "int8", ...}`, or as they are.

    >>> make_settings({"wire": "int8"}).lossy
    True
    """
    if given is None or isinstance(given, ExchangeSettings):
        return given or ExchangeSettings()
    known = [field.name for field in fields(ExchangeSettings)]
    if not isinstance(given, Mapping):
        raise ConfigError(f"exchange is {given!r}, expected settings of: {', '.join(known)}")
    if wrong := unknown_settings("exchange", given, known):
        raise ConfigError(wrong)
    settings: Tree = dict(given)
    return ExchangeSettings(**settings)


def check_settings(rule: Rule, settings: ExchangeSettings) -> None:
    """A ConfigError if the rule's exchange would ignore a setting."""
    kind = rule.resolve(lossy=settings.lossy).exchange_kind
    if settings.wire == POWERSGD and kind != "gradients":
        raise ConfigError(
            f"exchange.wire is powersgd, which is for gradients: rule bsp; rule {rule.name} takes "
            f"one of: {', '.join(WIRES)}"
        )
    usual = ExchangeSettings()
    names = [field.name for field in fields(settings)]
    changed = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    unused = [f"exchange.{name}" for name in changed if name not in USED[kind]]
    if unused:
        raise ConfigError(
            f"{', '.join(unused)} set, which has no effect with rule {describe_kind(rule)}; omit "
            f"it. This rule uses: {', '.join(sorted(USED[kind]))}"
        )


def describe_kind(rule: Rule) -> str:
    """The rule's name, and whether it was asked to be synchronous."""
    return rule.name + (" (synchronous)" if getattr(rule, "synchronous", False) else "")


def abort(world: World, error: BaseException) -> None:
    """End all ranks in the plainest way."""
    _log.error("rank %d: %s", world.rank, error)
    world.abort(1)


class ExchangeContext(NamedTuple):
    """Facts of the run, the same on all ranks."""

    exchange_id: int = 0
    """Tells the exchanges of one program apart."""
    settings: ExchangeSettings = ExchangeSettings()
    batches: int = 0
    """Of the whole run, granted to workers of asynchronous rules."""
    most_in_hand: int = 0
    """Batches that a worker of an asynchronous rule may have in hand."""
    seed: int = 0
    """Of random choices."""
    clip_norm: float | None = None
    """The largest norm of the averaged gradient."""
    saved: SavedCentre | None = None
    """The centre of the run that is resumed."""
    keeps_gradients: bool = False
    """Whether a step that came to nothing, since ranks were lost, leaves the gradients as they were
    (after `settle`), so that it can be taken again."""
    fail: Fail = abort
    """Called when something fails outside of the thread that trains."""
