"""Detects whether a model divides its loss by the number of items that the Trainer passes to it.

transformers assumes so for every forward() with **kwargs, and multiplies the loss by the number of processes.
Many models, such as T5, ALBERT or BERT with a head, return the mean over their batch nevertheless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_NAME = "num_items_in_batch"


@contextlib.contextmanager
def watched(called: nn.Module, model: nn.Module, then: Callable[[bool], None]) -> Iterator[None]:
    """Watches whether a model uses the number of items in forwards within the context.

    Args:
        called: The module that is called, which may wrap the model.
        model: The model itself.
        then: Called after each forward that got the number, with whether the forward used it.
    """
    uses: list[str] = []

    class Watched(Tensor):
        """The number of items, which records its uses."""

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.__name__ != "__get__":  # reading an attribute, such as its device, is not a use
                uses.append(func.__name__)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        number = kwargs.get(_NAME)
        return args, {**kwargs, _NAME: number.as_subclass(Watched)} if isinstance(number, Tensor) else kwargs

    def after(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if isinstance(kwargs.get(_NAME), Watched):
            then(bool(uses))

    handles = (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    )
    try:
        # The model would be compiled again for this one step.
        with torch.compiler.set_stance("force_eager") if _is_compiled(called) else contextlib.nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _is_compiled(called: nn.Module) -> bool:
    kind = torch._dynamo.OptimizedModule
    return any(isinstance(one, kind) or one._compiled_call_impl is not None for one in called.modules())
