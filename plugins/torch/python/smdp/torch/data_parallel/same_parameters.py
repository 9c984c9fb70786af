"""Whether a wrapped module still has the parameters that it was wrapped with."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn


def check_still_frozen(frozen: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Checks that parameters which wanted no gradient when the model was wrapped still want none.

    Raises:
        RuntimeError: One has been thawed.
    """
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise RuntimeError(
                f"[smdp] parameter '{name}' was frozen when the model was wrapped and now wants a "
                "gradient, which nobody would average. Wrap the model anew after thawing."
            )


def check_none_is_new(module: nn.Module, wrapped: Iterable[nn.Parameter], ignored: Collection[str]) -> None:
    """Checks that a module has no parameter with a gradient that it was not wrapped with.

    Raises:
        RuntimeError: It has one, and `ignored` does not name it.
    """
    known = {id(parameter) for parameter in wrapped}
    for name, parameter in module.named_parameters():
        is_new = parameter.requires_grad and id(parameter) not in known
        if is_new and name not in ignored:
            raise RuntimeError(
                f"[smdp] parameter '{name}' is another one than when the model was wrapped, or was added"
                " since (load_state_dict(assign=True) replaces all): nobody would average its gradient."
                " Wrap the model anew after that."
            )
