"""A torch loop of your own: model and optimizer, hooked at `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from paceline.errors import ReplicaError, TrainingError
from paceline.frameworks.torch.vectors import TorchVectors, describe_optimizer


def _refuse(closure: Any) -> None:
    if closure is not None:
        raise TrainingError(
            "optimizer.step(closure) computes gradients that keep_pace cannot exchange. Call "
            "loss.backward() and then optimizer.step(), with an optimizer that needs no closure "
            "(SGD, Adam, ...); LBFGS cannot be used in a keep_pace block"
        )


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
        before: Callable[[], None],
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

        def pre_hook(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            _refuse(args[1] if len(args) > 1 else kwargs.get("closure"))  # args[0] is itself
            if not self._in_step_of_ours:
                before()

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
        self, before: Callable[[], None], after: Callable[[], None], instead: Callable[[], bool]
    ) -> Callable[[], None]:
        attributes: dict[str, Any] = vars(self.optimizer)
        replaced = attributes.get("step")  # a scheduler's wrapper

        plain: Any = replaced or MethodType(type(self.optimizer).step, self.optimizer)

        def step(optimizer: Any, closure: Any = None) -> None:
            if self._in_step_of_ours:
                plain()
                return
            _refuse(closure)
            optimizer._opt_called = True  # schedulers warn if it is not
            before()
            if not instead():
                self.apply()
            after()

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
        self._in_step_of_ours = True
        try:
            self.optimizer.step()
        finally:
            self._in_step_of_ours = False

    def reset_optimizer(self) -> None:
        self.optimizer.state.clear()

    def describe_optimizer(self) -> str:
        return describe_optimizer(self.optimizer)
