"""What happens to gradients right before an optimizer uses them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


class BeforeStep:
    """Calls a function before steps of optimizers that have parameters of a model.

    Args:
        parameters: The parameters.
        call: The function.
    """

    def __init__(self, parameters: list[Parameter], call: Callable[[], None]) -> None:
        self._parameters = {id(one) for one in parameters}
        self._call = call
        here = weakref.ref(self)

        def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            found = here()
            if found is not None:
                found._before(optimizer)

        self._handle = register_optimizer_step_pre_hook(hook)
        weakref.finalize(self, self._handle.remove)

    def _before(self, optimizer: Optimizer) -> None:
        if any(id(one) in self._parameters for group in optimizer.param_groups for one in group["params"]):
            with torch.no_grad():
                self._call()
