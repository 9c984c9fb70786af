"""A link of a chain of optimizers: each wraps the next one, the innermost is the script's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.kept_parameters import keep_parameters


class OptimizerLink(Optimizer):
    """Passes everything on to the optimizer that it wraps; a subclass changes what it is there for.

    A link is an optimizer: learning rate schedulers, hooks and loss scalers work with it, and it can be used
    alone or inside of any other link. It has no groups, state or hooks of its own.

    Args:
        optimizer: The next link, or an optimizer of torch's kind.

    Attributes:
        inner: The optimizer that it wraps.
    """

    inner: Optimizer

    def __init__(self, optimizer: Optimizer) -> None:
        # torch's own constructor would make groups and state.
        self.__dict__["inner"] = optimizer

    @property
    def optimizer(self) -> Optimizer:
        """The innermost optimizer of the chain."""
        inner = self.inner
        while isinstance(inner, OptimizerLink):
            inner = inner.inner
        return inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the wrapped optimizer."""
        return list(self.inner.param_groups)

    @property
    def state(self) -> Any:
        """That of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        """Those of the wrapped optimizer."""
        return dict(self.inner.defaults)

    def __getattr__(self, name: str) -> Any:
        """Returns the wrapped optimizer's attributes."""
        if name in ("inner", "optimizer"):  # an unpickled link wraps nothing
            raise AttributeError(name)
        return getattr(self.inner, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters."""
        # Not every optimizer takes a closure.
        return self.inner.step() if closure is None else self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Lets go of gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters."""
        self.inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer."""
        return dict(self.inner.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over a state of the wrapped optimizer."""
        self.inner.load_state_dict(dict(state_dict))

    def keep_parameters(self, kept: Mapping[Parameter, Parameter]) -> None:
        """Drops parameters, and replaces the others; see `optimizers.kept_parameters`.

        Args:
            kept: What takes the place of each parameter that stays.
        """
        if isinstance(self.inner, OptimizerLink):
            self.inner.keep_parameters(kept)
        else:
            keep_parameters(self.inner, kept)
