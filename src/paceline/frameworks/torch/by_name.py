"""Torch's optimizers and losses by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from paceline.core.suggestions import unknown_name
from paceline.errors import ConfigError, DataError
from paceline.frameworks.optimizers_by_name import NamedOptimizers

LossFunction = Callable[[Any, Any], torch.Tensor]

NO_LABEL = -100
"""Torch's own mark for a position without a label, such as padding."""


@dataclass(frozen=True)
class Loss:
    """A mean loss, and what its targets are: classes, values of the outputs' shape, or unknown."""

    function: LossFunction
    targets: Literal["classes", "values", "unknown"]

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self.function(outputs, self.fit(outputs, targets))

    def check(self, targets: Any) -> None:
        """Refuse targets that do not suit this loss."""
        if self.targets == "unknown":
            return
        if targets is None:
            raise DataError(
                "the data has no targets, and the loss needs them; set data.keys, or "
                "give x.npy,y.npy or (x, y)"
            )
        floats = isinstance(targets, torch.Tensor) and targets.is_floating_point()
        if self.targets == "classes" and floats and targets.dim() == 1:
            raise DataError(f"labels are {targets.dtype}, and this loss needs whole numbers")

    def fit(self, outputs: Any, targets: Any) -> Any:
        """Targets in the shape of the outputs where only the shape differs.

        Classes in a column are classes. Values in a row against outputs in a column would silently
        broadcast to a square. Targets of an unknown loss are left alone.
        """
        if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
            return targets
        if self.targets == "classes" and outputs.dim() == targets.dim() == 2:
            if targets.shape[1] == 1 < outputs.shape[1]:
                return targets.squeeze(1)
        elif self.targets == "values" and outputs.shape == (*targets.shape, 1):
            targets = targets.unsqueeze(-1)
        if self.targets != "unknown" and targets.shape == outputs.shape:
            return targets.to(outputs.dtype)  # 0/1 integers, one-hot
        return targets

    def count_correct(self, outputs: Any, targets: Any) -> dict[str, float]:
        """How many outputs give the right class, where targets are classes."""
        targets = self.fit(outputs, targets)
        if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
            return {}
        if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
            right = (outputs.argmax(1) == targets)[targets != NO_LABEL]
        elif self.targets == "classes" and outputs.shape == targets.shape:
            right = outputs.argmax(1) == targets.argmax(1)  # probabilities of classes
        else:
            return {}
        return {"correct": float(right.sum()), "counted": float(right.numel())}


_CROSS_ENTROPY = Loss(F.cross_entropy, "classes")

LOSSES: dict[str, Loss] = {
    "cross_entropy": _CROSS_ENTROPY,
    "categorical_crossentropy": _CROSS_ENTROPY,
    "sparse_categorical_crossentropy": _CROSS_ENTROPY,
    "nll": Loss(F.nll_loss, "classes"),
    "binary_crossentropy": Loss(F.binary_cross_entropy_with_logits, "values"),
    "mse": Loss(F.mse_loss, "values"),
    "mae": Loss(F.l1_loss, "values"),
    "huber": Loss(F.huber_loss, "values"),
}

_OPTIMIZERS = NamedOptimizers(
    {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    },
    not_settings=("params", "named_parameters"),
    unfit={
        "lbfgs": "it asks for several gradients per step",
        "sparseadam": "gradients are exchanged dense; use adam",
    },
)


def find_loss(loss: str | LossFunction) -> Loss:
    """A loss from its name, or from a function: `loss(outputs, targets)` is a mean over samples."""
    if callable(loss):
        return Loss(loss, "unknown")
    if not isinstance(loss, str):
        raise ConfigError(
            f"loss is {loss!s:.100}, expected a name or a function; a loss for each output is "
            "for Keras models"
        )
    if loss not in LOSSES:
        raise ConfigError(unknown_name("loss", loss, LOSSES))
    return LOSSES[loss]


def make_optimizer(
    spec: Mapping[str, Any] | Callable[..., torch.optim.Optimizer],
    parameters: Iterable[torch.nn.Parameter],
) -> torch.optim.Optimizer:
    """An optimizer from `{"name": "adam", "lr": ..., ...}`, or from a function of the parameters.

    The name is any class of torch.optim, in any case; the other keys are its own arguments.
    """
    if callable(spec):
        return spec(parameters)
    found = _OPTIMIZERS.find(spec)
    for key, value in found.settings.items():
        expected = expected_kind(value, found.defaults[key])
        if expected is not None:
            raise ConfigError(f"optimizer {found.name}: {key} is {value!r}, expected {expected}")
    optimizer: torch.optim.Optimizer = found.make(parameters)
    return optimizer


def expected_kind(value: Any, usual: Any) -> str | None:
    """In words, what a setting with this default must be; None if it is that. Optimizers read some
    of their settings only in a step."""
    if isinstance(usual, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(usual, tuple):
        several = isinstance(value, tuple | list) and len(value) == len(usual)
        pairs = zip(value, usual, strict=True) if several else ()
        fits = several and all(_is_number(item) or own is None for item, own in pairs)
        return None if fits else f"{len(usual)} numbers"
    if isinstance(usual, int | float):
        return None if _is_number(value) else "a number"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
