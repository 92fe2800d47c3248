"""A torch loop of your own: model and optimizer, hooked at `optimizer.step()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch

from paceline.errors import ReplicaError, TrainingError
from paceline.frameworks.replica import BeforeStep
from paceline.frameworks.torch.vectors import TorchVectors, describe_optimizer


def _evaluate(closure: Callable[[], Any], before: BeforeStep) -> Any:
    """What a closure gives, after an exchange of the gradients that it left."""
    with torch.enable_grad():
        loss = closure()
    value = loss.item() if isinstance(loss, torch.Tensor) else loss
    mean = before(value)
    if mean is None:
        return loss
    return loss.new_tensor(mean) if isinstance(loss, torch.Tensor) else mean


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class TorchLoop(TorchVectors):
    """The module as vectors, and a hook on the optimizer."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(module)
        self.optimizer = optimizer
        self._in_step_of_ours = False
        own = {id(parameter) for parameter in module.parameters()}
        for index, group in enumerate(optimizer.param_groups):
            foreign = sum(id(parameter) not in own for parameter in group["params"])
            if foreign:
                raise ReplicaError(
                    f"{foreign} parameters in group {index} of the optimizer are not the model's; "
                    "they would drift apart on the ranks. Put all that is trained into one module"
                )

    def around_step(
        self,
        before: BeforeStep,
        after: Callable[[], None],
        instead: Callable[[], bool] = lambda: False,
    ) -> Callable[[], None]:
        """Call these whenever the loop calls `optimizer.step()`; returns a function to end that.

        While `instead` holds, they take the step, and torch's own is skipped, unless it has other
        hooks: it would only look for gradients that are not there.
        """
        own = self.optimizer
        hooked = own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks
        if instead() and not hooked:
            return self._replace_step(before, after, instead)

        def pre_hook(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._in_step_of_ours:
                return None
            closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is itself
            if closure is None:
                before()
                return None
            rest = {name: value for name, value in kwargs.items() if name != "closure"}
            return (args[0], partial(_evaluate, closure, before), *args[2:]), rest

        def post_hook(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._in_step_of_ours:
                after()

        handles = (
            self.optimizer.register_step_pre_hook(pre_hook),
            self.optimizer.register_step_post_hook(post_hook),
        )

        def end() -> None:
            for handle in handles:
                handle.remove()

        return end

    def _replace_step(
        self, before: BeforeStep, after: Callable[[], None], instead: Callable[[], bool]
    ) -> Callable[[], None]:
        attributes: dict[str, Any] = vars(self.optimizer)
        replaced = attributes.get("step")  # a scheduler's wrapper

        plain: Any = replaced or MethodType(type(self.optimizer).step, self.optimizer)

        def step(optimizer: Any, closure: Any = None) -> Any:
            if self._in_step_of_ours:
                return plain()
            optimizer._opt_called = True  # schedulers warn if it is not
            loss = before() if closure is None else _evaluate(closure, before)
            if not instead():
                self.apply()
            after()
            return loss

        if replaced is not None:
            vars(step).update(vars(replaced))
        attributes["step"] = MethodType(step, self.optimizer)

        def end() -> None:
            del attributes["step"]
            if replaced is not None:
                attributes["step"] = replaced

        return end

    def apply(self) -> None:
        """A step that the loop did not take, with the gradients held."""
        if _needs_closure(self.optimizer):
            raise TrainingError(
                f"{type(self.optimizer).__name__} needs a closure, and this rank's loop has ended "
                "while others still have batches; let all ranks take the same number of steps, as "
                "paceline.shard does"
            )
        self._in_step_of_ours = True
        try:
            self.optimizer.step()
        finally:
            self._in_step_of_ours = False

    def reset_optimizer(self) -> None:
        self.optimizer.state.clear()

    def describe_optimizer(self) -> str:
        return describe_optimizer(self.optimizer)
