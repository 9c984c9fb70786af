"""What happens right before and after an optimizer uses gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class BeforeStep:
    """Calls functions before and after steps of optimizers that have parameters of a model.

    Args:
        parameters: The parameters.
        call: The function that is called before a step.
        after: The function that is called after a step.
    """

    def __init__(
        self, parameters: list[Parameter], call: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._parameters = {id(one) for one in parameters}
        self._call = call
        here = weakref.ref(self)

        def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            found = here()
            if found is not None and found._has_parameters_of(optimizer):
                with torch.no_grad():
                    found._call()

        def after_hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            found = here()
            if found is not None and found._has_parameters_of(optimizer):
                after()

        for handle in (register_optimizer_step_pre_hook(hook), register_optimizer_step_post_hook(after_hook)):
            weakref.finalize(self, handle.remove)

    def _has_parameters_of(self, optimizer: Optimizer) -> bool:
        return any(id(one) in self._parameters for group in optimizer.param_groups for one in group["params"])
