"""Keeps torch.compile out of the backend."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

import torch

Class = TypeVar("Class", bound=type)


def untraced(cls: Class) -> Class:
    """Let torch.compile call the methods of this class, and what they call, uncompiled.

    It inspects every frame that runs inside a compiled program, and so ours when torch's C++ calls
    us (DDP does, between two compiled graphs). There it would fail at attributes that a C++ group
    does not have.

    `torch.compiler.disable` does the same, but imports the whole compiler, which takes seconds,
    and costs time at every call. This is what it tells the interpreter in the end.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        skip_all = frames._FrameExecStrategy(skip, skip)
        for method in _methods(cls):
            frames.set_code_exec_strategy(method.__code__, skip_all)
    return cls


def _methods(cls: type) -> list[FunctionType]:
    found = [getattr(one, "fget", one) for one in vars(cls).values()]
    return [one for one in found if isinstance(one, FunctionType)]
