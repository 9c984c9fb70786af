"""Activation checkpoints (`torch.utils.checkpoint`): those in a unit are its own business, others move in.

What is recomputed in backward is the unit's forward alone, on the values and random numbers that it had: no
rank runs the program between units again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint


def has_checkpoints(module: nn.Module) -> bool:
    """Tell whether a module, or one in it, is set to checkpoint, as transformers' are."""
    return any(getattr(each, "gradient_checkpointing", False) is True for each in module.modules())


def is_checkpointed() -> bool:
    """Tell whether the innermost hooks on what autograd saves are those of a checkpoint."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def checkpointed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that keeps its inputs for backward and nothing else."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(call, *args, use_reentrant=False, **kwargs)

    return run


def refuse_reentrant(unit: str) -> None:
    """Refuse to run a unit within a reentrant checkpoint, which would run the program again in backward.

    Raises:
        ValueError: It is in one.
    """
    if torch.is_grad_enabled():
        return  # such a checkpoint switches gradients off
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            raise ValueError(
                f"[smdp] module {unit!r} runs within torch.utils.checkpoint(use_reentrant=True), which would"
                " run the model's code between modules again in backward; allowed: use_reentrant=False, of"
                ' transformers gradient_checkpointing_enable({"use_reentrant": False})'
            )
        frame = frame.f_back


@contextlib.contextmanager
def outside_checkpoints() -> Iterator[None]:
    """Let autograd save what runs within as if there were no checkpoint around it."""
    around = []
    while is_checkpointed():
        around.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(around):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
