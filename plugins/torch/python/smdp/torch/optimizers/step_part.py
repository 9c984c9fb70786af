"""Steps of an optimizer for some of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

_MISSING = object()
_GLOBAL_HOOKS = (optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks)


class Options:
    """The options of an optimizer's groups at one moment.

    Args:
        groups: The groups.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._found = [{key: (value, _version(value)) for key, value in group.items()} for group in groups]

    def changed(self, groups: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the name of an option, other than the parameters, that has changed since then."""
        for group, found in zip(groups, self._found, strict=True):
            for key, value in group.items():
                before, version = found.get(key, (_MISSING, 0))
                if key != "params" and (value is not before or _version(value) != version):
                    return key
        return None


def step_part(
    optimizer: Optimizer,
    step: Callable[[], Any],
    groups: Sequence[Mapping[str, Any]],
    parts: Sequence[list[Parameter]],
) -> str | None:
    """Makes an optimizer step for some parameters only.

    Args:
        optimizer: The optimizer, which gets its own groups back.
        step: Its `step()`.
        groups: The options of each group.
        parts: The parameters of each group to step.

    Returns:
        None, or the name of an option that the step has changed. An optimizer that does so keeps something
        for whole groups, so several steps for parts are not the same as one for everything.
    """
    limited = [{**group, "params": part} for group, part in zip(groups, parts, strict=True)]
    before = Options(limited)
    own = optimizer.param_groups
    optimizer.param_groups = limited
    try:
        step()
    finally:
        optimizer.param_groups = own
    return before.changed(limited)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Returns whether something is called at every step, which must not happen for each part."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return any((*_GLOBAL_HOOKS, *own))


def _version(value: object) -> int:
    return value._version if isinstance(value, Tensor) else 0
