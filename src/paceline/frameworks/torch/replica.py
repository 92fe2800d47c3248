"""The Replica of PyTorch: a module, a loss and an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from paceline.core.nests import leaves, map_leaves
from paceline.errors import ConfigError, DataError
from paceline.frameworks.replica import BatchLike
from paceline.frameworks.torch.by_name import NO_LABEL, LossFunction, find_loss, make_optimizer
from paceline.frameworks.torch.model_files import load_weights
from paceline.frameworks.torch.vectors import TorchVectors, describe_optimizer

OptimizerSpec: TypeAlias = Mapping[str, Any] | Callable[..., Any]
"""Name and settings, or a function of the parameters."""


class TorchReplica(TorchVectors):
    """A torch module that trains as one of many replicas."""

    OPTIONS = ("weights", "compile", "precision")
    """Settings of a run that only this Replica has."""

    def __init__(
        self,
        module: torch.nn.Module,
        loss: str | LossFunction,
        optimizer: OptimizerSpec,
        *,
        weights: str | None = None,
        compile: bool = False,
        precision: str = "float32",
    ) -> None:
        """`weights` is a file of initial values, `compile` speeds up the forward pass by
        torch.compile, and `precision` may be lower than that of the parameters."""
        if weights is not None:
            load_weights(module, weights)
        super().__init__(module)
        self._loss = find_loss(loss)
        self.optimizer = make_optimizer(optimizer, self._trained)
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self._model_dtype = self._trained[0].dtype
        self._device = self._trained[0].device
        if not module.training:
            module.train()
        self._modes: list[tuple[torch.nn.Module, bool]] | None = None
        self._lower = precision == "bfloat16"
        self._precision: Any = nullcontext()
        if self._lower:
            self._precision = torch.autocast(self._device.type, torch.bfloat16)
        if self._lower and self._model_dtype != torch.float32:
            raise ConfigError(
                f"precision is bfloat16, and the model's parameters are {self._model_dtype}; it is "
                "for models of float32: omit it"
            )
        # Module.compile() would skip torch's own layers, Sequential among them (torch 2.13).
        self._run = torch.compile(module) if compile else module

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def scale_learning_rate(self, factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor

    def gradients(self, batch: BatchLike, weight: float = 1.0, add: bool = False) -> float:
        if not add:
            self.clear_gradients()
        self._resume_training()
        _, _, loss = self._forward(batch)
        value = float(loss.item())
        if math.isfinite(value):  # else the gradients would not be finite either
            (loss * weight if weight != 1.0 else loss).backward()
        return value

    def apply(self) -> None:
        self.optimizer.step()

    def evaluate(self, batch: BatchLike) -> dict[str, float]:
        self._pause_training()
        with torch.no_grad():
            outputs, targets, loss = self._forward(batch)
            sums = {"loss": loss.item() * batch.samples, "samples": float(batch.samples)}
            return sums | self._loss.count_correct(outputs, targets)

    def reset_optimizer(self) -> None:
        self.optimizer.state.clear()

    def describe_optimizer(self) -> str:
        return describe_optimizer(self.optimizer)

    def save(self, path: Path) -> Path:
        """Write model.safetensors; tied weights are written once, with their other names."""
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
        path.chmod(0o644)  # safetensors makes it readable for its owner alone
        return path

    def _pause_training(self) -> None:
        """Evaluation mode; modules get their modes back later (a frozen BatchNorm stays frozen)."""
        if self._modes is None:
            self._modes = [(part, part.training) for part in self.module.modules()]
            self.module.eval()

    def _resume_training(self) -> None:
        if self._modes is not None:
            for part, training in self._modes:
                part.training = training
            self._modes = None

    def _forward(self, batch: BatchLike) -> tuple[Any, Any, torch.Tensor]:
        """Outputs, targets and the mean loss."""
        inputs = self._tensors(batch.inputs, images=True)
        try:
            with self._precision:
                outputs = self._call(inputs)
        except (RuntimeError, TypeError, ValueError) as error:
            _explain_compiler(error)
            _explain_complex("inputs", inputs, self._model_dtype)
            shapes = [tuple(leaf.shape) for leaf in leaves(inputs) if hasattr(leaf, "shape")]
            error.add_note(f"paceline: the model was given inputs of shape {shapes}")
            raise
        if self._lower:  # a loss sums many numbers
            outputs = map_leaves(_widened, outputs)
        targets = self._tensors(batch.targets, images=False)
        self._loss.check(targets)
        try:
            return outputs, targets, self._loss(outputs, targets)
        except (IndexError, RuntimeError) as error:
            if "out of bounds" in str(error):
                _name_wrong_label(outputs, targets, batch)
            _explain_complex("targets", targets, self._model_dtype)
            raise

    def _call(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return self._run(**inputs)
        packed = isinstance(inputs, torch.nn.utils.rnn.PackedSequence)  # a tuple, by its class
        if isinstance(inputs, tuple | list) and not packed:
            return self._run(*inputs)
        return self._run(inputs)

    def _tensors(self, value: Any, images: bool) -> Any:
        """Arrays as tensors of the model's float type, integers as int64; with `images`, bytes are
        pixels, scaled to 0..1. Tensors are used as they are."""

        def convert(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf.to(self._device)
            if not isinstance(leaf, np.ndarray):
                return leaf
            if leaf.dtype.kind not in "biufc" or leaf.dtype.char in "gG":
                raise DataError(f"arrays of {leaf.dtype} cannot be trained on; make them numbers")
            tensor = torch.from_numpy(leaf)
            if tensor.is_complex():
                return tensor.to(self._device)
            if images and leaf.dtype == np.uint8:
                return tensor.to(self._device, self._model_dtype) / 255
            floats = tensor.is_floating_point()
            return tensor.to(self._device, self._model_dtype if floats else torch.int64)

        return map_leaves(convert, value)


def _widened(leaf: Any) -> Any:
    bfloat16 = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16
    return leaf.float() if bfloat16 else leaf


def _explain_compiler(error: Exception) -> None:
    """Explain failures of torch.compile. They are recognised by name, since importing the classes
    of its errors would take seconds."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        cause = " ".join(str(error).split("Set TORCHDYNAMO_VERBOSE")[0].split())[:300]
        raise ConfigError(
            f"torch.compile failed ({cause}); it needs a C++ compiler on every node, and not every "
            "model suits it: omit compile"
        ) from error


def _explain_complex(what: str, tensors: Any, own: torch.dtype) -> None:
    """Explain a failure that is due to complex numbers in a model of real ones."""
    for leaf in leaves(tensors):
        if isinstance(leaf, torch.Tensor) and leaf.is_complex() and not own.is_complex:
            raise DataError(
                f"the {what} are {leaf.dtype}, and the model computes in {own}; save real and "
                "imaginary parts as separate arrays, or use a model of complex numbers"
            )


def _name_wrong_label(outputs: Any, targets: Any, batch: BatchLike) -> None:
    """Turn the loss function's complaint about a label into one that names label and sample."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return
    classes = outputs.shape[1]
    wrong = ((targets < 0) & (targets != NO_LABEL)) | (targets >= classes)
    rows = wrong.reshape(len(targets), -1).any(1).nonzero()
    if len(rows) == 0:
        return
    row = int(rows[0])
    indices = getattr(batch, "indices", None)
    sample = row if indices is None else int(indices[row])
    raise DataError(
        f"label {targets[row].tolist()} of sample {sample} is out of range: the model has "
        f"{classes} outputs, so labels go from 0 to {classes - 1}"
    )
