"""Activation checkpoints (`torch.utils.checkpoint`) in pipelined models.

A checkpoint inside a unit works as usual. One around units is moved into each of them, so backward recomputes
only the unit's forward, with the same values and random numbers. The code between units never runs again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from smdp.torch.recompute.rules import FixedRule, Rule, surrounding_rule

_CHECKPOINTS = ("torch.utils.checkpoint", "smdp.torch.recompute.recomputed_group")
_each = FixedRule()


def has_checkpoints(module: nn.Module) -> bool:
    """Returns whether a module, or a submodule, sets `gradient_checkpointing`, as in transformers."""
    return any(getattr(each, "gradient_checkpointing", False) is True for each in module.modules())


def rule_of_units() -> Rule | None:
    """Returns the rule for a unit that is called here: that of the checkpoints around it, or None."""
    return surrounding_rule() or (_each if _is_checkpointed() else None)


def _is_checkpointed() -> bool:
    """Returns whether the innermost saved-tensor hooks belong to a checkpoint."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", "") in _CHECKPOINTS


def refuse_reentrant(unit: str) -> None:
    """Refuses to run a unit in a reentrant checkpoint, which would run the code between units again.

    Raises:
        ValueError: The unit runs in a reentrant checkpoint.
    """
    if torch.is_grad_enabled():
        return  # a reentrant checkpoint disables gradients
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            raise ValueError(
                f"[smdp] module {unit!r} runs in torch.utils.checkpoint(use_reentrant=True), which would run"
                " the model's code between modules again in backward. Pass use_reentrant=False; with"
                ' transformers, call gradient_checkpointing_enable({"use_reentrant": False}).'
            )
        frame = frame.f_back


@contextlib.contextmanager
def outside_checkpoints() -> Iterator[None]:
    """Disables the surrounding checkpoints, so that autograd saves the values used in the context."""
    around = []
    while _is_checkpointed():
        around.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(around):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
