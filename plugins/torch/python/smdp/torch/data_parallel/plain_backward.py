"""Tells a plain `backward()` from one for some gradients alone."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node


def is_plain_backward(root: Node) -> bool:
    """Returns whether the backward under way is that of a plain `backward()`, with gradients for all leaves.

    Those of `torch.autograd.grad()` and of `backward(inputs=...)` are for some alone, and leave nothing to
    average, whatever else is behind `root`.
    """
    nodes, seen, is_found = [root], {root}, False
    while nodes:
        node = nodes.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            try:
                if not torch._C._will_engine_execute_node(node):
                    return False
            except RuntimeError:  # torch.autograd.grad() wants its gradient
                return False
            is_found = True
        behind = {one for one, _ in node.next_functions if one is not None} - seen
        nodes += behind
        seen |= behind
    return is_found
