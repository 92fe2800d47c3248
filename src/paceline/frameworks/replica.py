"""The Replica: what Paceline needs of a framework, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.core.vectors import Layout, Vector


class BatchLike(Protocol):
    """The samples of one step, as the data sources hand them out."""

    inputs: Any
    targets: Any
    samples: int


@runtime_checkable
class Replica(Protocol):
    """One worker's model with its optimizer, seen as flat vectors.

    A vector handed out is the model's own memory wherever the framework allows it. Where it does
    not, it is a copy, and `accept_...` writes it back after somebody changed it; callers always do
    both, so either way works.
    """

    layout: Layout
    """Where each trained parameter lies in the parameter and gradient vectors."""
    learning_rate: float
    """The rate in force, for the records."""

    def rehome(self, parameters: Vector, gradients: Vector) -> None:
        """Keep parameters and gradients in this memory from now on; the values stay."""

    def release(self) -> None:
        """Keep them in memory of the model's own again; training is over."""

    def parameters(self) -> Vector:
        """The parameters as one vector."""

    def accept_parameters(self) -> None:
        """The parameter vector was written: the model follows."""

    def gradients(self, batch: Any, weight: float = 1.0, add: bool = False) -> float:
        """The mean loss of the batch; its gradient times `weight` is kept, or added to the last."""

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

    def scale_learning_rate(self, factor: float) -> None:
        """Use `factor` times the rates the optimizer was made with."""

    def evaluate(self, batch: Any) -> dict[str, float]:
        """Sums over the batch: `loss` and `samples`; for classes also `correct` and `counted`."""

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
        """Go on with what `optimizer_state` once gave."""

    def save(self, path: Path) -> Path:
        """Write the plain model beside `path`, with the framework's own suffix."""
