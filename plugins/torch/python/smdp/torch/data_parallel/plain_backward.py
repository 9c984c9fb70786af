"""Distinguishes a plain `backward()` from one that computes only some gradients."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node


def is_plain_backward(root: Node) -> bool:
    """Returns whether the running backward is a plain `backward()`, which computes all leaves' gradients.

    `torch.autograd.grad()` and `backward(inputs=...)` compute only some gradients.

    Args:
        root: A node of the graph. The leaves behind it are examined.
    """
    nodes, seen, is_found = [root], {root}, False
    while nodes:
        node = nodes.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            try:
                if not torch._C._will_engine_execute_node(node):
                    return False
            except RuntimeError:  # torch.autograd.grad() asked for this gradient
                return False
            is_found = True
        behind = {one for one, _ in node.next_functions if one is not None} - seen
        nodes += behind
        seen |= behind
    return is_found
