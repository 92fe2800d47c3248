"""What goes into a step, what comes out of it, and what an exchange is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from paceline.comm import World
from paceline.core.trees import Tree
from paceline.core.vectors import Vector
from paceline.errors import WorldError
from paceline.observe import Stopwatch

if TYPE_CHECKING:
    from paceline.sync.asynchronous.base import AsynchronousExchange
    from paceline.sync.saved import SavedCentre

_WEIGHT, _HIGH, _LOW, _MORE, _STOP, _SAVE, _QUIT, _SAVE_ONLY, _MARK, _FIELDS = range(10)
_SPLIT = 4096  # a float32 counts to 16 million; two of them count all samples of an epoch


class Contribution(NamedTuple):
    """What one rank brings to a step."""

    samples: float = 0
    """How many its gradient stands for; none if it takes part without a batch."""
    weight: float = 0.0
    """Their weight; a full batch has 1."""
    more: bool = False
    """It has a further batch in this epoch."""
    stop: bool = False
    """It asks to stop."""
    loss: float = 0.0
    """The sum over its samples, where it is known."""
    save: bool = False
    """It asks for a checkpoint after this step."""
    quit: bool = False
    """It asks all ranks to save and exit."""
    speed: float = 0.0
    """The cost that this rank gets through in a second; 0: it does not say."""
    taken: int = 0
    """Batches of the epoch that it has had, this one included."""

    def alone(self) -> StepOutcome:
        """What comes of it where no other rank takes part."""
        return StepOutcome(
            int(self.samples), self.weight, self.more, self.stop, save=self.save, quit=self.quit
        )


class StepOutcome(NamedTuple):
    """What all ranks know after an exchange."""

    samples: int
    """Samples behind this exchange, over all ranks."""
    weight: float
    """Their weight."""
    more: bool
    """Some rank has a further batch in this epoch."""
    stop: bool
    """Some rank asks to stop."""
    save: bool = False
    """All ranks save now."""
    quit: bool = False
    """And then exit."""
    rejected: bool = False
    """This rank's gradients were not finite, and were left out."""
    deferred: bool = False
    """Some rank came only to save: nothing was merged, and ranks that came to merge exchange
    again."""
    speeds: Vector | None = None
    """What each rank said of its speed, where gradients are exchanged."""
    taken: Vector | None = None
    """How many batches of the epoch each rank has had, in an elastic world."""

    @property
    def wants_pause(self) -> bool:
        return self.save or self.quit


class Settled(NamedTuple):
    """What became of the step that was under way on this rank when ranks were lost."""

    counts: bool = False
    """It is done, and its samples count. If not, it left no trace: they are dealt again, or where
    gradients are kept, it is taken again."""
    outcome: StepOutcome | None = None
    """What all ranks know of it."""


class StepHead:
    """A contribution as numbers that can be summed over the ranks.

    So one all-reduce brings all ranks to the same knowledge. The mark says which exchange of the
    program this is; the sum tells whether all ranks are in the same one.
    """

    SIZE, WEIGHT = _FIELDS, _WEIGHT

    @staticmethod
    def write(head: Vector, mine: Contribution, mark: float, save_only: bool = False) -> None:
        samples, weight, more, stop, _, save, quit, *_ = mine
        high, low = divmod(samples, _SPLIT)
        head[:_FIELDS] = weight, high, low, more, stop, save, quit, save_only, mark

    @staticmethod
    def check(total: Vector, mark: float, ranks: int) -> None:
        """A WorldError if some rank has another mark."""
        if total[_MARK] != mark * ranks:
            raise WorldError(
                "the ranks are in different keep_pace blocks; every rank must take the same steps "
                "with each of its models"
            )

    @staticmethod
    def read(total: Vector, rejected: bool = False) -> StepOutcome:
        """The outcome for all."""
        weight, high, low, more, stop, save, quit, save_only = total[:_MARK].tolist()
        return StepOutcome(
            int(high * _SPLIT + low),
            weight,
            more > 0,
            stop > 0,
            save > 0,
            quit > 0,
            rejected,
            save_only > 0,
        )


class Exchange(ABC):
    """What a worker calls around each of its steps; each call may exchange with others, or not."""

    asynchronous = False
    """Whether workers do not wait for each other, not even at the end of an epoch."""
    replicas_stay_equal = False
    """Whether the replicas, and their optimizers, are the same after every step."""
    filters_nonfinite = False
    """Whether it keeps gradients that are not finite out of the step by itself."""
    steps_optimizer = False
    """Whether `before_step` also takes the optimizer's step; nobody else may then."""
    trains = True
    """Whether this rank trains."""
    workers: tuple[int, ...] = ()
    """The ranks that train."""
    rounds = 0
    """Exchanges that this rank has completed."""
    carried: SavedCentre | None = None
    """After `settle`: the centre for those that are left."""

    @property
    @abstractmethod
    def bytes_sent(self) -> int:
        """Since the start, by this rank."""

    def as_asynchronous(self) -> AsynchronousExchange | None:
        """This exchange, if workers do not wait for each other in it."""
        return None

    def describe(self) -> str:
        """Who does what, for the user; empty if there is nothing to say."""
        return ""

    def last_backward(self, weight: float) -> None:
        """Gradients of this weight come now, the last ones before the step."""
        return

    def expect_one_backward(self, weight_of: Callable[[], float]) -> None:
        """Every backward is the last before a step; ask for its weight when it begins."""
        return

    def before_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """Gradients are there; the optimizer has not used them."""
        return None

    def after_step(self, mine: Contribution, watch: Stopwatch) -> StepOutcome | None:
        """The optimizer has moved the weights. A rank without a further batch always exchanges."""
        return None

    def end_epoch(self, watch: Stopwatch) -> None:
        """A user's loop is through its data and goes on with the next epoch."""
        return

    def run_deferred(self, watch: Stopwatch) -> StepOutcome | None:
        """After a pause: the exchange that it deferred, if this rank had come for one."""
        return None

    @abstractmethod
    def snapshot(self) -> Tree:
        """What this rank needs to resume; the arrays are copies."""

    @abstractmethod
    def restore(self, saved: Tree, same_ranks: bool) -> None:
        """Resume from what `snapshot` gave; with other ranks than then, only what all had in
        common."""

    @abstractmethod
    def close(self) -> None:
        """The last step is done; all ranks come here together."""

    def abandon(self) -> None:
        """This rank has failed: end what runs beside its steps, and wait for nobody."""
        return

    def settle(self, left: World) -> Settled:
        """Ranks were lost. Those that are `left` all come here: the exchange that was under way is
        finished on all of them, or on none. Afterwards only `snapshot` and `abandon` are called.

        If more ranks are lost meanwhile it is called again, with the world that is left then."""
        raise WorldError("by this rule the run cannot go on without the ranks that were lost")

    def common_weights(self) -> Vector | None:
        """The weights to validate and save, asking nobody; None: the replica's own."""
        return None

    def agree_on_weights(self) -> Vector | None:
        """The same, where all ranks come here together and may exchange."""
        return self.common_weights()
