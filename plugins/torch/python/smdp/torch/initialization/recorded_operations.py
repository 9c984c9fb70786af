"""Values of a model's tensors, computed from the operations that have been recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.torch.initialization.generator_states import generator_at
from smdp.torch.initialization.operations import Operation, default_dtype, plainly
from smdp.torch.initialization.schemas import SHAPE_ONLY
from smdp.torch.initialization.windows import Node, Window, as_laid_out

_TRIM_BYTES = 2**24


class RecordedOperations:
    """Operations in their order, and the storages that they are about.

    Attributes:
        nodes: The storages, by number.
        operations: All that have written one of them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.operations: list[Operation] = []
        self._churned = 0  # bytes that came and went since the heap was trimmed
        # The newest draw, for rejection sampling looks at it at once: its operation, node and values.
        self._newest: tuple[int, int, torch.UntypedStorage] | None = None

    def uninitialised(self, targets: Iterable[int]) -> set[int]:
        """Returns the adopted nodes that some target's values depend on, though nothing ever wrote them."""
        _, _, missing = self._needed(targets)
        return {node for node in missing if self.nodes[node].is_adopted}

    def replay(
        self,
        targets: Iterable[int],
        finish: Callable[[int, torch.UntypedStorage], torch.UntypedStorage] | None = None,
    ) -> dict[int, torch.UntypedStorage]:
        """Computes the values of nodes and what they depend on, nothing else; generators stay as they are.

        Args:
            targets: Nodes.
            finish: Called with a target and its storage as soon as that is final; gives what takes its place.

        Raises:
            SmdpError: They depend on a meta tensor that the tape knows nothing about.
        """
        targets = set(targets)
        needed, found, _ = self._needed(targets)
        last: dict[int, int] = {}
        changed: set[int] = set()
        for index in needed:
            operation = self.operations[index]
            last.update(dict.fromkeys(operation.reads | operation.writes, index))
            changed |= set() if index == found else operation.writes
        ends: dict[int, list[int]] = {}
        for node, index in last.items():
            ends.setdefault(index, []).append(node)
        storages: dict[int, torch.UntypedStorage] = {}
        with plainly():
            for index in needed:
                operation = self.operations[index]
                if self._newest is not None and index == found:
                    _, node, drawn = self._newest
                    storages[node] = drawn.clone() if node in changed else drawn
                else:
                    self._run(operation, storages)
                for node in ends.get(index, ()):
                    if node not in targets:
                        storages.pop(node, None)
                    elif finish is not None:
                        storages[node] = finish(node, storages[node])
            for node in targets - last.keys():
                blank = self.blank(node)
                storages[node] = blank if finish is None else finish(node, blank)
        self._churned += sum(self.nodes[node].nbytes for node in last)
        if self._churned > _TRIM_BYTES:
            _trim_heap()
            self._churned = 0
        return storages

    def blank(self, node: int) -> torch.UntypedStorage:
        """Returns memory for a node, whose values are of no interest."""
        about = self.nodes[node]
        return torch.empty(about.nbytes, dtype=torch.uint8, device=about.device).untyped_storage()

    def _needed(self, targets: Iterable[int]) -> tuple[list[int], int | None, set[int]]:
        """Returns the operations that targets need, the newest draw if it is one, and nodes never written."""
        wanted = set(targets)
        needed: list[int] = []
        found = None
        for index in range(len(self.operations) - 1, -1, -1):
            if not wanted:
                break
            operation = self.operations[index]
            hit = operation.writes & wanted
            if not hit:
                continue
            needed.append(index)
            wanted -= operation.overwrites
            if self._newest is not None and index == self._newest[0]:
                found = index
            else:
                wanted |= operation.reads
        return needed[::-1], found, wanted

    def _run(self, operation: Operation, storages: dict[int, torch.UntypedStorage]) -> None:
        name = operation.func.overloadpacket.__name__

        def value(leaf: Any) -> Any:
            if isinstance(leaf, torch.Generator):
                return None
            if not isinstance(leaf, Window):
                if isinstance(leaf, Tensor) and leaf.is_meta:
                    raise SmdpError(
                        f"[smdp] {operation.func} read a meta tensor that has no values; "
                        "make it inside of delayed_initialization(), without device='meta'"
                    )
                return leaf
            if name in SHAPE_ONLY and leaf.node not in storages:
                return leaf.blank(self.nodes[leaf.node].device)
            if leaf.node not in storages:
                storages[leaf.node] = self.blank(leaf.node)
            return leaf.on(storages[leaf.node])

        args, kwargs = tree_map(value, (operation.args, operation.kwargs))
        with default_dtype(operation.default_dtype), generator_at(operation.device, operation.state):
            result = operation.func(*args, **kwargs)
        for window, output in zip(operation.outputs, tree_leaves(result), strict=True):
            if window is not None:
                storages[window.node] = as_laid_out(output, window, self.nodes[window.node])


def _trim_heap() -> None:
    # glibc cuts small pieces from large free ones, which then fit no tensor of the size that they had.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
