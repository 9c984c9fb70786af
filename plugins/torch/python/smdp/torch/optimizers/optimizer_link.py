"""A link in a chain of optimizers. Each link wraps the next one, and the innermost is the script's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.kept_parameters import keep_parameters

# What torch's GradScaler sets before step() of an optimizer that scales by itself, and deletes afterwards.
_LOSS_SCALE = ("grad_scale", "found_inf")


class OptimizerLink(Optimizer):
    """Forwards all calls to the optimizer that it wraps. Subclasses override the calls that they change.

    A link is itself an optimizer: learning rate schedulers, hooks and loss scalers work with it, and it can
    be used alone or inside any other link. It uses the groups, state and hooks of the wrapped optimizer.

    Args:
        optimizer: The next link, or a torch optimizer.

    Attributes:
        inner: The wrapped optimizer.
    """

    inner: Optimizer

    # Whether step() uses what a loss scaler sets if an optimizer scales by itself. Other links pass it on.
    takes_loss_scale = False
    # Whether step() needs the gradients of all parameters before it updates any.
    needs_all_gradients = False

    def __init__(self, optimizer: Optimizer) -> None:
        # torch's constructor would create groups and state.
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
        """The parameter groups of the wrapped optimizer."""
        return list(self.inner.param_groups)

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        """The default options of the wrapped optimizer."""
        return dict(self.inner.defaults)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped optimizer."""
        if name in ("inner", "optimizer"):  # while unpickling, there is no wrapped optimizer yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        if name in _LOSS_SCALE and not self.takes_loss_scale:
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Deletes an attribute."""
        if name in _LOSS_SCALE and not self.takes_loss_scale:
            delattr(self.inner, name)
        else:
            super().__delattr__(name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters."""
        # Some optimizers accept no closure.
        return self.inner.step() if closure is None else self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters."""
        self.inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer."""
        return dict(self.inner.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state into the wrapped optimizer."""
        self.inner.load_state_dict(dict(state_dict))

    def keep_parameters(self, kept: Mapping[Parameter, Parameter]) -> None:
        """Drops parameters and replaces the others; see `optimizers.kept_parameters`.

        Args:
            kept: The replacement of each parameter that stays.
        """
        if isinstance(self.inner, OptimizerLink):
            self.inner.keep_parameters(kept)
        else:
            keep_parameters(self.inner, kept)
