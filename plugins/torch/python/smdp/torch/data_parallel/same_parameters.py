"""Checks that a wrapped module still has the parameters that it was wrapped with."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn


def check_still_frozen(frozen: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Checks that the parameters that were frozen when the model was wrapped still are.

    Raises:
        RuntimeError: A parameter has been unfrozen.
    """
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise RuntimeError(
                f"[smdp] parameter '{name}' was frozen when the model was wrapped and now requires a"
                " gradient, which would not be averaged. Wrap the model again after unfreezing it."
            )


def check_none_is_new(module: nn.Module, wrapped: Iterable[nn.Parameter], ignored: Collection[str]) -> None:
    """Checks that every parameter that requires a gradient was there when the module was wrapped.

    Args:
        module: The module.
        wrapped: The parameters that it was wrapped with.
        ignored: Names of parameters that are not averaged.

    Raises:
        RuntimeError: A parameter is new.
    """
    known = {id(parameter) for parameter in wrapped}
    for name, parameter in module.named_parameters():
        is_new = parameter.requires_grad and id(parameter) not in known
        if is_new and name not in ignored:
            raise RuntimeError(
                f"[smdp] parameter '{name}' was replaced or added after the model was wrapped, so its"
                " gradient would not be averaged. load_state_dict(assign=True) replaces all parameters."
                " Wrap the model again after such a change."
            )
