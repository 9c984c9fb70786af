"""Computes the values of a model's tensors from recorded operations."""

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
    """Recorded operations in order, and the storages that they use.

    Attributes:
        nodes: The storages, by number.
        operations: All operations that have written a storage.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.operations: list[Operation] = []
        self._churned = 0  # bytes allocated and freed since the heap was trimmed
        # The operation, node and values of the newest draw, which rejection sampling reads at once.
        self._newest: tuple[int, int, torch.UntypedStorage] | None = None

    def uninitialized(self, targets: Iterable[int]) -> set[int]:
        """Returns the adopted nodes that the targets depend on, but that no operation has written."""
        _, _, missing = self._needed(targets)
        return {node for node in missing if self.nodes[node].is_adopted}

    def replay(
        self,
        targets: Iterable[int],
        finish: Callable[[int, torch.UntypedStorage], torch.UntypedStorage] | None = None,
    ) -> dict[int, torch.UntypedStorage]:
        """Computes the values of nodes and of all that they depend on. Generators keep their states.

        Args:
            targets: The numbers of the nodes.
            finish: Called with a target and its storage when the values are final. It returns the storage to
                use instead.

        Returns:
            The storages by node.

        Raises:
            smdp.SmdpError: The values depend on a meta tensor that the tape does not know.
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
        """Returns uninitialized memory for a node."""
        about = self.nodes[node]
        return torch.empty(about.nbytes, dtype=torch.uint8, device=about.device).untyped_storage()

    def _needed(self, targets: Iterable[int]) -> tuple[list[int], int | None, set[int]]:
        """Returns the operations that targets need, the newest draw if among them, and unwritten nodes."""
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
                        f"[smdp] {operation.func} read a meta tensor that has no values. Create the tensor in"
                        " delayed_initialization(), without device='meta'."
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
    # glibc splits large free blocks for small requests, and they then no longer fit a tensor of that size.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
