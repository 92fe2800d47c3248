"""What rules with a centre have in common: workers meet it one at a time, each at its own pace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from paceline.core.vectors import Vector
from paceline.errors import ConfigError
from paceline.rules.checks import WIRES, check_choice, check_flag, check_whole
from paceline.rules.weights import State

_PIECE_ELEMENTS = 32 * 1024


class PushTerms(NamedTuple):
    """What a worker says with its push."""

    force: float = 0.0
    """Of the elastic pull."""
    scale: float = 1.0
    """By which the push counts; 0: refused."""
    steps: int = 1
    """Local steps behind it."""


class CentreRule(ABC):
    """Workers train at their own pace and meet a centre, one at a time.

    An exchange is: the worker writes a push (`make_push`), the centre moves by it (`absorb`), and
    the worker follows what comes back (`apply_reply`). A push may come without a pull and a pull
    without a push; a refused push is not absorbed. All three work on any contiguous piece of the
    vectors alike.
    """

    name: ClassVar[str]
    exchange_kind: ClassVar[str] = "centre"
    trivial_alone: ClassVar[bool]
    """Whether a single rank with this rule simply trains."""
    reply_kind: ClassVar[str]
    """What goes back to a worker: the `move` that its push became, or the `centre` itself."""
    servers: int | None = None
    """None: Paceline decides; 0: the workers hold the centre; n: ranks that do nothing else."""
    overlap: bool = False
    """Whether to go on computing while an exchange travels."""
    wire: str = "float32"
    """The format in which vectors travel."""

    @property
    @abstractmethod
    def report_every(self) -> int:
        """Steps of a worker between two exchanges, at least."""

    @abstractmethod
    def due(self, step: int) -> tuple[bool, bool]:
        """Whether to push, and to pull, after that many steps of this worker."""

    @abstractmethod
    def terms(self, step: int, steps: int, workers: int) -> PushTerms:
        """For a push after `step` steps in all, `steps` of them since the last push."""

    def staleness_weight(self, staleness: int) -> float:
        """By which a push counts that was computed on a centre so many updates old; 0 refuses."""
        return 1.0

    def init_worker(self, replica: Vector) -> State:
        """What a worker keeps beside its replica: vectors as long as that."""
        return {}

    def init_centre(self, size: int, dtype: Any) -> State:
        """The centre's optimizer state for a piece of so many elements: arrays of that size, or of
        one element."""
        return {}

    @abstractmethod
    def make_push(self, replica: Vector, state: State, terms: PushTerms, out: Vector) -> None:
        """Write what the worker pushes; its state follows."""

    @abstractmethod
    def absorb(self, sent: Vector, centre: Vector, state: State, terms: PushTerms) -> None:
        """Move the centre, in place, by a push; `sent` becomes the move where the rule answers with
        that, and is used up otherwise."""

    @abstractmethod
    def apply_reply(self, reply: Vector, at: Vector, replica: Vector, state: State) -> None:
        """Let the replica follow the answer; `at` is the replica as it was when it asked.

        That is the same array, unless the worker went on computing meanwhile: its steps since then
        are kept. The reply is left as it is.
        """

    def exchange_in_place(
        self, replica: Vector, centre: Vector, terms: PushTerms, out: Vector
    ) -> bool:
        """All three at once, where replica and centre lie in one memory and the worker waits; the
        move is left in `out`. False, and nothing done, if the rule has no quicker way."""
        return False

    def check_place_and_wire(self) -> None:
        """The settings that all rules with a centre have."""
        if self.servers is not None:
            check_whole("servers", self.servers, least=0)
        check_flag("overlap", self.overlap)
        check_choice("wire", self.wire, WIRES)

    def refuse_if_synchronous(self, **settings: Any) -> None:
        """Name the settings that a synchronous rule would not heed."""
        given = {"servers": self.servers, "overlap": self.overlap, **settings}
        heeded = {name for name, value in given.items() if value is None or value is False}
        unused = [f"rule.{name}" for name in given if name not in heeded]
        if unused:
            raise ConfigError(
                f"rule.synchronous is true and {', '.join(unused)} set, which has no effect when "
                "all workers meet at once; leave it out, or set rule.synchronous=false"
            )


def pieces(size: int) -> Iterator[slice]:
    """Parts of a vector that stay in the cache, so that temporaries are short and quick.

    >>> [piece.stop - piece.start for piece in pieces(70_000)]
    [32768, 32768, 4464]
    """
    for first in range(0, size, _PIECE_ELEMENTS):
        yield slice(first, min(first + _PIECE_ELEMENTS, size))
