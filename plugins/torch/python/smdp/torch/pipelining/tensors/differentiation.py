"""Finds the values that have a gradient, which are those that the loss depends on through autograd.

A value that later stages only detach, or convert to integers, has no gradient, and neither do the parameters
that it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.tensors.values import Value


def graph_inputs(tensor: Tensor, nodes: Mapping[Any, int]) -> tuple[int, ...]:
    """Returns the numbers of those nodes of an autograd graph from which a tensor was derived.

    Args:
        tensor: The tensor with its graph.
        nodes: The nodes to look for, each with its number.
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
    """Sets `is_in_loss` of each value.

    Args:
        values: The values of a program.
        loss: The value that is the loss.
    """
    for value in values:
        value.is_in_loss = False
    ahead = [loss]
    while ahead:
        value = ahead.pop()
        if not value.is_in_loss:
            value.is_in_loss = True
            ahead += value.sources
