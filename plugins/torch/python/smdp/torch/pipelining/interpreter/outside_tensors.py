"""Tensors that code around the model writes to: those of one microbatch, and those that outlive it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from smdp.torch.pipelining.tensors.containers import tensors_in
from smdp.torch.pipelining.tensors.functions import is_in_place
from smdp.torch.pipelining.tensors.values import memory_of, text_of, value_of, weight_of

# Tensors created in the program of one microbatch, to which one rank alone has written a stage's values.
_of_one_rank: Any = WeakIdKeyDictionary()


class Births:
    """Tracks the tensors that the program of one microbatch has created without a stage's values."""

    @functools.cached_property
    def _known(self) -> Any:
        return WeakIdKeyDictionary()  # most programs make no such tensor

    def note(self, result: Any, given: Any) -> None:
        """Tracks a function's result: it is new unless it shares memory with an older tensor."""
        made = tensors_in(result)
        if not made:
            return
        older = {memory_of(tensor) for tensor in tensors_in(given) if tensor not in self._known}
        for tensor in made:
            if memory_of(tensor) not in older:
                self._known[tensor] = True

    def check(self, tensor: Tensor) -> None:
        """Raises if a tensor was created in another microbatch and written to by one rank only.

        Raises:
            ValueError: The tensor is such a tensor.
        """
        if _of_one_rank and _of_one_rank.get(tensor, self._known) is not self._known:
            raise ValueError(
                f"[smdp] {text_of(tensor)} was created in the program of another microbatch, and the rank of"
                " a pipeline stage has written values to it. Create tensors that accumulate over"
                " microbatches before the step."
            )

    def writes_outside(self, name: str, args: Any, kwargs: Any) -> Tensor | None:
        """Returns a tensor from before the microbatch to which a function would write a stage's values."""
        for tensor in _written(name, args, kwargs):
            if value_of(tensor) is not None:
                continue
            if tensor not in self._known:
                return tensor
            _of_one_rank[tensor] = self._known
        return None


def _written(name: str, args: Any, kwargs: Any) -> list[Tensor]:
    """Returns the tensors that a torch function writes to; none if a weight of the model is involved."""
    target = kwargs.get("out")
    if target is None and args and is_in_place(name):
        target = args[0]
    found = tensors_in(target)
    if found and any(weight_of(tensor) is not None for tensor in tensors_in((args, kwargs))):
        return []
    return found


def has_gradient(given: Any) -> bool:
    """Returns whether autograd would track a stage's value into the written tensor."""
    return torch.is_grad_enabled() and any(
        value_of(tensor) is not None and tensor.requires_grad for tensor in tensors_in(given)
    )


def parameter_behind(tensor: Tensor) -> Parameter | None:
    """Returns a parameter outside the model to which a tensor's gradient would be added, or None."""
    if not (torch.is_grad_enabled() and tensor.requires_grad) or value_of(tensor) is not None:
        return None
    if isinstance(tensor, Parameter):
        return tensor
    seen: set[Any] = set()
    nodes: list[Any] = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # only AccumulateGrad nodes have it
        if isinstance(variable, Parameter) and weight_of(variable) is None:
            return variable
        nodes += [following for following, _ in node.next_functions]
    return None
