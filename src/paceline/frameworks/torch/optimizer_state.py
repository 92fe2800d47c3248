"""A torch optimizer's state as nested dicts of numpy arrays and plain values, and back."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch

from paceline.errors import CheckpointError
from paceline.frameworks.torch.by_name import expected_kind

_PLAIN = (type(None), bool, int, float, str)


def pack_optimizer(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Pack what `Optimizer.state_dict` returns; the arrays are copies."""
    states = {
        str(at): {name: _pack(value) for name, value in state.items()}
        for at, state in state_dict["state"].items()
    }
    groups = [
        {key: _pack(value) for key, value in group.items() if key != "params"}
        for group in state_dict["param_groups"]
    ]
    return {"state": states, "groups": groups}


def unpack_optimizer(packed: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Unpack it for `load_state_dict`. Without `groups`, the optimizer keeps its settings."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    groups = optimizer.state_dict()["param_groups"]
    saved = packed.get("groups", [{} for _ in groups])
    if len(groups) != len(saved):
        raise CheckpointError(
            f"the optimizer has {len(groups)} groups of parameters, the checkpoint's had "
            f"{len(saved)}; resume with the optimizer that the run had"
        )
    for group, settings in zip(groups, saved, strict=True):
        for key, value in settings.items():
            new = _like(_unpack(value, parameters[0]), group.get(key))
            _check_setting(key, new, group.get(key))
            group[key] = new
    states = {}
    for at, state in packed["state"].items():
        if int(at) >= len(parameters):
            raise CheckpointError(f"the checkpoint's optimizer has a parameter {at} too many")
        like = parameters[int(at)]
        states[int(at)] = {name: _unpack(value, like) for name, value in state.items()}
        _check_state(at, states[int(at)], like, kept_by(optimizer, like.dim()))
    return {"state": states, "param_groups": groups}


def _pack(value: Any) -> Any:
    """Tensors as arrays, with the name of the type, which numpy may not have."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        kind = str(flat.dtype).removeprefix("torch.")
        try:
            return {"type": kind, "values": flat.numpy().copy()}
        except TypeError:
            raw = flat.reshape(-1).view(torch.uint8).numpy().copy()
            return {"type": kind, "values": raw, "shape": list(flat.shape)}
    if isinstance(value, list | tuple):
        return [_pack(item) for item in value]
    if isinstance(value, _PLAIN):
        return value
    raise CheckpointError(
        f"the optimizer keeps a {type(value).__name__}, which checkpoints cannot hold"
    )


def _like(value: Any, model: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(model, tuple) else value


def _unpack(value: Any, like: torch.Tensor) -> Any:
    if isinstance(value, list):
        return [_unpack(item, like) for item in value]
    if not isinstance(value, dict):
        return value
    raw = torch.from_numpy(np.array(value["values"]))
    kind = getattr(torch, value["type"])
    tensor = raw.view(kind).reshape(value["shape"]) if "shape" in value else raw
    if tensor.shape == like.shape and tensor.dim():
        return torch.empty_like(like, dtype=tensor.dtype, device="cpu").copy_(tensor)
    return tensor


def kept_by(optimizer: torch.optim.Optimizer, dims: int) -> dict[str, Any]:
    """The state it keeps for a parameter of so many dimensions, found by a step on a small one.

    Empty for an optimizer that cannot take such a step.
    """
    small = torch.nn.Parameter(torch.zeros((2,) * dims))
    small.grad = torch.zeros_like(small)
    trial = copy.copy(optimizer)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**optimizer.param_groups[0], "params": [small]}]
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    try:
        type(optimizer).step(trial)
    except Exception:  # a custom optimizer, which needs more than a parameter
        return {}
    return dict(trial.state[small])


def _check_setting(key: str, value: Any, now: Any) -> None:
    expected = expected_kind(value, now)
    plain = value is None or isinstance(value, bool | int | float | str)
    if expected is None and now is None and not plain:
        expected = "a plain value"
    if expected is not None:
        raise ValueError(f"the optimizer's {key} is {value!r}, expected {expected}")


def _check_state(at: str, state: dict[str, Any], like: torch.Tensor, kept: dict[str, Any]) -> None:
    """Raise a ValueError for state that the next step would fail on."""
    for name, usual in kept.items():
        place = f"the optimizer's {name} of parameter {at}"
        if name not in state:
            raise ValueError(f"{place} is missing")
        value = state[name]
        if isinstance(usual, torch.Tensor):
            _check_shape(place, value, like, usual)
        elif isinstance(usual, int | float) and not isinstance(value, int | float | torch.Tensor):
            raise ValueError(f"{place} is {value!r}, expected a number")


def _check_shape(place: str, value: Any, like: torch.Tensor, usual: torch.Tensor) -> None:
    """A single number, the parameter's shape, or fewer (one for each row and the like)."""
    found = tuple(value.shape) if isinstance(value, torch.Tensor) else None
    if not usual.dim():
        fits, shape = isinstance(value, torch.Tensor) and value.numel() == 1, "a single number"
    elif usual.shape == (2,) * like.dim():
        fits, shape = found == tuple(like.shape), f"shape {tuple(like.shape)}"
    else:
        fits, shape = found is not None and len(found) <= like.dim(), "one with fewer dimensions"
    if not fits:
        raise ValueError(f"{place} has shape {found}, expected {shape}")
