"""A torch optimizer's state as nested dicts of numpy arrays and plain values, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.errors import CheckpointError

_PLAIN = (type(None), bool, int, float, str)


def pack_optimizer(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What `Optimizer.state_dict` gives; the arrays are copies."""
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
    """For `load_state_dict`. Without `groups`, the optimizer keeps the settings it has now."""
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
            group[key] = _like(_unpack(value, parameters[0]), group.get(key))
    states = {}
    for at, state in packed["state"].items():
        if int(at) >= len(parameters):
            raise CheckpointError(f"the checkpoint's optimizer has a parameter {at} too many")
        like = parameters[int(at)]
        states[int(at)] = {name: _unpack(value, like) for name, value in state.items()}
    return {"state": states, "param_groups": groups}


def _pack(value: Any) -> Any:
    """Tensors as arrays, with the name of a type that numpy does not know."""
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
        f"the optimizer keeps a {type(value).__name__}, which no checkpoint can hold"
    )


def _like(value: Any, model: Any) -> Any:
    """JSON knows no tuples."""
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
