"""What Paceline needs of a framework, and nothing more: a model and its optimizer as flat vectors.

`VectorModel` is all that an exchange uses. A `Replica` also computes gradients: the Trainer drives
it. A `Loop` is a model whose steps the user's own loop takes, a `FitLoop` one that a framework's
`fit` trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.core.vectors import Layout, Vector

Undo = Callable[[], None]
"""Takes back what was hung on a model."""


class BatchLike(Protocol):
    """The samples of one step, as the data sources hand them out."""

    inputs: Any
    targets: Any
    samples: int


@runtime_checkable
class VectorModel(Protocol):
    """A model with its optimizer, seen as flat vectors.

    A vector handed out is the model's own memory wherever the framework allows it. Where it does
    not, it is a copy, and `accept_...` writes it back after somebody changed it; callers always do
    both, so either way works.
    """

    layout: Layout
    """Where each trained parameter lies in the parameter and gradient vectors."""

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        """Keep parameters and gradients in this memory from now on; the values stay."""

    def release(self) -> None:
        """Keep them in memory of the model's own again; training is over."""

    def parameters(self) -> Vector:
        """The parameters as one vector."""

    def accept_parameters(self) -> None:
        """The parameter vector was written: the model follows."""

    def clear_gradients(self) -> None:
        """Forget the gradients: this worker has no samples in this step."""

    def gradients_are_finite(self) -> bool:
        """Whether no gradient is infinite or not a number."""

    def collect_gradients(self) -> tuple[Vector, Vector]:
        """The gradients as one vector, and for each parameter 1 or 0: it has one, or none."""

    def accept_gradients(self, present: Vector) -> None:
        """The gradient vector was written; `present` > 0 where any worker had a gradient."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradients so that their norm is at most this; the norm before."""

    def apply(self) -> None:
        """One optimizer step with the gradients held."""

    def reset_optimizer(self) -> None:
        """Forget the optimizer's state (momenta), not its settings."""

    def buffers(self) -> Vector:
        """Float state that is not trained (BatchNorm statistics), as one vector."""

    def accept_buffers(self) -> None:
        """The buffer vector was written: the model follows."""

    def constants(self) -> Vector:
        """The bytes of all else that must be equal at the start: frozen parameters, counters."""

    def accept_constants(self) -> None:
        """The vector of constants was written: the model follows."""

    def describe_optimizer(self) -> str:
        """Kind, settings and a hash of its state, the same on all ranks that start equal."""

    def optimizer_state(self) -> dict[str, Any]:
        """What the optimizer has gathered, for a checkpoint: nested dicts of arrays and plain
        values; the arrays are copies."""

    def accept_optimizer_state(self, state: dict[str, Any]) -> None:
        """Resume from what `optimizer_state` once gave."""


def scale_gradients(model: VectorModel, factor: float) -> None:
    """Multiply the gradients held by this factor."""
    if factor == 1.0:
        return
    gradient, present = model.collect_gradients()
    gradient *= gradient.dtype.type(factor)
    model.accept_gradients(present)


@runtime_checkable
class Replica(VectorModel, Protocol):
    """One worker's model, which computes losses and gradients of batches."""

    learning_rate: float
    """The rate in force, for the records."""

    def gradients(self, batch: Any, weight: float = 1.0, add: bool = False) -> float:
        """The mean loss of the batch; its gradient times `weight` is kept, or added to the last."""

    def scale_learning_rate(self, factor: float) -> None:
        """Use `factor` times the rates the optimizer was made with."""

    def evaluate(self, batch: Any) -> dict[str, float]:
        """Sums over the batch: `loss` and `samples`; for classes also `correct` and `counted`."""

    def save(self, path: Path) -> Path:
        """Write the plain model beside `path`, with the framework's own suffix."""


class BeforeStep(Protocol):
    """Called when gradients are there and the optimizer has not used them: without a loss, or by an
    optimizer that evaluates the loss itself, maybe several times in a step, with each of them. Then
    it returns the loss that the optimizer shall go by."""

    def __call__(self, loss: float | None = None) -> float | None: ...


class Loop(VectorModel, Protocol):
    """A model whose optimizer the user's own loop steps."""

    def around_step(
        self, before: BeforeStep, after: Callable[[], None], instead: Callable[[], bool]
    ) -> Undo:
        """Call these around every step of the optimizer; while `instead` holds, its own step may be
        left out: there are no gradients for it."""


class FitLoop(Loop, Protocol):
    """A model that a framework's `fit` trains."""

    @property
    def scales_loss(self) -> bool:
        """Whether the optimizer scales the loss, and itself skips steps that are not finite."""

    def around_gradients(self, average: Callable[[float], None]) -> Undo:
        """Call this, with the samples behind them, when gradients are there and not yet used."""

    def samples_seen(self) -> float | None:
        """Samples of the last batch, where the model knows."""

    def reseed(self, by: int) -> None:
        """Let this rank draw other random numbers than the others."""


@runtime_checkable
class RoundsWeights(Protocol):
    """A model that may store its weights in less precision than the vector has."""

    @property
    def stores_rounded(self) -> bool: ...


@runtime_checkable
class WithMetrics(Protocol):
    """A replica whose `evaluate` gives further sums, and that makes figures of them."""

    def figures(self, sums: dict[str, Any]) -> dict[str, float]: ...


@runtime_checkable
class WithSeeds(Protocol):
    """A replica with random numbers of its own (Keras' seed generators)."""

    def reseed(self, by: int) -> None: ...


@runtime_checkable
class WithStateNames(Protocol):
    """A replica that knows where each array of the saved model lies in its vectors."""

    def locate_state(self) -> Any: ...


class Chunk(Protocol):
    """A part of the vector that is stepped at a time."""

    piece: slice
    gradient: Vector
    """Where its gradient is to be written."""


class SliceStepper(Protocol):
    """An optimizer that steps on pieces of the vector, chunk by chunk."""

    @property
    def chunks(self) -> Sequence[Chunk]: ...

    def stepping(self, present: Vector) -> AbstractContextManager[None]:
        """Around the steps of all chunks; parameters that are not `present` are left alone."""

    def step(self, chunk: Chunk) -> None:
        """Step on a chunk whose gradient has been written."""

    def for_pieces(self, pieces: Sequence[slice], present: Vector | None) -> SliceStepper:
        """The same optimizer on pieces of a rank that is lost, as it was before the step; `present`
        if this one has begun the step with it."""


@runtime_checkable
class ShareableModel(VectorModel, Protocol):
    """A model whose parameters and optimizer state the ranks of a node can share."""

    def step_is_elementwise(self) -> bool:
        """Whether a step on slices is a step on the whole."""

    def slot_names(self) -> list[str]:
        """Names of the vectors that the optimizer keeps, each as long as the parameters."""

    def on_gradient(self, ready: Callable[[int], None] | None) -> Undo:
        """Lay each gradient into the gradient vector as backward makes it, and tell which."""

    def slice_optimizer(
        self, parameters: Vector, pieces: Sequence[slice], slots: Mapping[str, Vector]
    ) -> SliceStepper:
        """The optimizer on these pieces; its state lies in the slots."""

    def expose_whole_state(self, slices: SliceStepper) -> Undo:
        """Let the user's optimizer show and take the state of all slices."""
