"""Which values have a gradient: those that the loss depends on through autograd.

A value that later stages only detach, or turn into integers, has none; nor have the parameters behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.tensors.values import Value


def graph_inputs(tensor: Tensor, nodes: Mapping[Any, int]) -> tuple[int, ...]:
    """Give which of some nodes of an autograd graph a tensor was made from.

    Args:
        tensor: With its graph.
        nodes: What is looked for, with a number for each.
    """
    found: set[int] = set()
    seen: set[Any] = set()
    ahead = [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in nodes:
            found.add(nodes[node])
        else:
            ahead += [before for before, _ in node.next_functions]
    return tuple(sorted(found))


def find_gradients(values: Iterable[Value], loss: Value) -> None:
    """Note of each value whether the loss depends on it.

    Args:
        values: Of a program.
        loss: One of them.
    """
    for value in values:
        value.is_in_loss = False
    ahead = [loss]
    while ahead:
        value = ahead.pop()
        if not value.is_in_loss:
            value.is_in_loss = True
            ahead += value.sources
