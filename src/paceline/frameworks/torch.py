"""The Replica of PyTorch: a module, a loss and an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from paceline.errors import DataError
from paceline.frameworks.replica import BatchLike
from paceline.frameworks.torch_names import Loss, find_loss, make_optimizer
from paceline.frameworks.torch_vectors import TorchVectors, state_checksum

OptimizerSpec: TypeAlias = Mapping[str, Any] | Callable[..., Any]
"""Name and settings, or a function of the parameters."""


class TorchReplica(TorchVectors):
    """A torch module that trains as one of many replicas."""

    def __init__(self, module: torch.nn.Module, loss: str | Loss, optimizer: OptimizerSpec) -> None:
        super().__init__(module)
        self._loss = find_loss(loss)
        self.optimizer = make_optimizer(optimizer, self._trained)
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self._model_dtype = self._trained[0].dtype
        self._device = self._trained[0].device

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def scale_learning_rate(self, factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        if not add:
            self.clear_gradients()
        self._set_mode(training=True)
        _, _, loss = self._forward(batch)
        (loss * weight if weight != 1.0 else loss).backward()
        return float(loss.item())

    def clip(self, max_norm: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self._trained, max_norm))

    def apply(self) -> None:
        self.optimizer.step()

    def evaluate(self, batch: BatchLike) -> dict[str, float]:
        self._set_mode(training=False)
        with torch.no_grad():
            outputs, targets, loss = self._forward(batch)
            sums = {"loss": loss.item() * batch.samples, "samples": float(batch.samples)}
            return sums | _count_correct(outputs, targets)

    def optimizer_checksum(self) -> int:
        return state_checksum(self.optimizer)

    def save(self, path: Path) -> Path:
        """Write model.safetensors; of tied weights one is kept, the others named beside it."""
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        aliases: dict[str, str] = {}
        kept: dict[tuple[Any, ...], str] = {}
        for name, tensor in self.module.state_dict().items():
            place = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if tensor.numel() and place in kept:
                aliases[name] = kept[place]
            else:
                kept[place] = name
                tensors[name] = tensor.detach().cpu().contiguous().clone()  # off the flat vector
        path = path.with_suffix(".safetensors")
        save_file(tensors, str(path), metadata={"format": "pt", **aliases})
        return path

    def _set_mode(self, training: bool) -> None:
        if self.module.training != training:  # walking all submodules costs as much as a layer
            self.module.train(training)

    def _forward(self, batch: BatchLike) -> tuple[Any, Any, torch.Tensor]:
        """Outputs, targets and the mean loss."""
        inputs = self._tensors(batch.inputs, images=True)
        if isinstance(inputs, Mapping):
            outputs = self.module(**inputs)
        elif isinstance(inputs, tuple | list):
            outputs = self.module(*inputs)
        else:
            outputs = self.module(inputs)
        targets = _fit(outputs, self._tensors(batch.targets, images=False))
        try:
            return outputs, targets, self._loss(outputs, targets)
        except (IndexError, RuntimeError):
            _explain_targets(outputs, targets, batch)
            raise

    def _tensors(self, value: Any, images: bool) -> Any:
        """Arrays as tensors of the model's float type, integers as int64; with `images`, bytes are
        pixels, scaled to 0..1. Tensors are taken as they are."""
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value)
            if images and value.dtype == np.uint8:
                return tensor.to(self._device, self._model_dtype) / 255
            if tensor.is_floating_point():
                return tensor.to(self._device, self._model_dtype)
            return tensor.to(self._device, torch.int64)
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        if isinstance(value, Mapping):
            return {key: self._tensors(item, images) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self._tensors(item, images) for item in value)
        return value


def _fit(outputs: Any, targets: Any) -> Any:
    """Targets in the form of the outputs where only the form differs.

    A column against a row would broadcast to a square without a word; classes in a column are
    classes; 0/1 targets of the outputs' shape must be floats.
    """
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return targets
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        targets = targets.unsqueeze(-1)
    elif outputs.dim() == targets.dim() == 2 and targets.shape[1] == 1 < outputs.shape[1]:
        targets = targets.squeeze(1)
    if targets.shape == outputs.shape and not targets.is_floating_point():
        targets = targets.to(outputs.dtype)
    return targets


def _count_correct(outputs: Any, targets: Any) -> dict[str, float]:
    """How many of the outputs name the right class, where outputs and targets are classes."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return {}
    if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
        right = outputs.argmax(1) == targets
    elif outputs.shape == targets.shape and outputs.dim() == 2 and outputs.shape[1] > 1:
        if not bool((targets.sum(1) == 1).all()):
            return {}
        right = outputs.argmax(1) == targets.argmax(1)  # one-hot
    else:
        return {}
    return {"correct": float(right.sum()), "counted": float(right.numel())}


def _explain_targets(outputs: Any, targets: Any, batch: BatchLike) -> None:
    """Turn the loss function's complaint about a label into one that names label and sample."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return
    if targets.is_floating_point() or outputs.dim() < 2:
        return
    classes = outputs.shape[1]
    wrong = ((targets < 0) | (targets >= classes)).reshape(len(targets), -1).any(1).nonzero()
    if len(wrong) == 0:
        return
    row = int(wrong[0])
    indices = getattr(batch, "indices", None)
    sample = row if indices is None else int(indices[row])
    raise DataError(
        f"label {targets[row].tolist()} of sample {sample} is out of range: the model has "
        f"{classes} outputs, so labels go from 0 to {classes - 1}"
    )
