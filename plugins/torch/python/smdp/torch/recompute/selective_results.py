"""Selective recomputation: results that are expensive per byte are kept, and everything else is recomputed.

Kept are products with weights, fused attention, and sums over tensor-parallel ranks. A product of two
activations is kept if each of its elements takes more operations than a row of it has elements. So a matrix
of attention scores is recomputed, and its product with the values is kept.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from smdp.torch.recompute.recomputed_group import saved_by_autograd

_PRODUCTS_WITH_WEIGHTS = {"mm", "addmm", "linear", "convolution"}
_PRODUCTS = {"bmm": (0, 1), "baddbmm": (1, 2)}
_ATTENTION = "_scaled_dot_product_"


class SelectiveResults:
    """The results that a module keeps in its calls.

    The first call keeps none. It finds out which results the module changes in place later on, as a sum over
    ranks may do: those cannot be kept, because running the module again would change them twice.
    """

    def __init__(self) -> None:
        self._changed: set[int] | None = None
        self._first: _Choice | None = None

    def __call__(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Returns the contexts in which a call runs for the first time and again."""
        if self._changed is None and self._first is not None:
            self._changed = self._first.changed
            self._first = None
        choice = _Choice(self._changed)
        if self._changed is None:
            self._first = choice
        first, again = create_selective_checkpoint_contexts(choice)
        return _FirstRun(first), again


class _FirstRun(AbstractContextManager[None]):
    """The context of a first run. At its end, the kept results pass the hooks around it, such as offloading.

    Args:
        mode: torch's mode, which keeps results in its `storage`.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        storage = getattr(self._mode, "storage", None)
        are_seen = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if error[0] is None and are_seen and isinstance(storage, dict):
            for key, results in storage.items():
                storage[key] = tree_map(_passed, results)


def _passed(kept: Any) -> Any:
    return _Passed(kept.val) if isinstance(getattr(kept, "val", None), Tensor) else kept


class _Passed:
    """A kept result in the form that torch's second mode expects."""

    def __init__(self, result: Tensor) -> None:
        self._node = saved_by_autograd([result])

    def get_val(self, *unused: Any) -> Tensor:
        (result,) = self._node.saved_tensors
        found: Tensor = result
        return found


class _Choice:
    """Chooses the results that one call keeps, numbered in their order.

    Args:
        left_out: The numbers of results that are not kept. None: all.

    Attributes:
        changed: The numbers of results that an operation has changed in place.
    """

    def __init__(self, left_out: set[int] | None) -> None:
        self.changed: set[int] = set()
        self._left_out = left_out
        self._counts = {False: 0, True: 0}
        self._numbers: dict[int, int] = {}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if self._left_out is None:
            self._note_changes(operator, args)
        if not _is_expensive_per_byte(operator, args, kwargs):
            return CheckpointPolicy.PREFER_RECOMPUTE
        number = self._counts[context.is_recompute]
        self._counts[context.is_recompute] += 1
        if self._left_out is None:
            for leaf in tree_leaves(context.op_output):
                if isinstance(leaf, Tensor):
                    self._numbers[leaf.untyped_storage()._cdata] = number
            return CheckpointPolicy.PREFER_RECOMPUTE
        is_kept = number not in self._left_out
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    def _note_changes(self, operator: Any, args: Any) -> None:
        schema = getattr(operator, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        for argument, given in zip(schema.arguments, args, strict=False):
            for leaf in tree_leaves(given) if argument.is_write else ():
                if isinstance(leaf, Tensor):
                    number = self._numbers.get(leaf.untyped_storage()._cdata)
                    self.changed |= set() if number is None else {number}


def _is_expensive_per_byte(operator: Any, args: Any, kwargs: Any) -> bool:
    schema = getattr(operator, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    namespace, _, name = schema.name.partition("::")
    if namespace == "smdp":  # a collective
        return True
    if namespace != "aten":
        return False
    if name.startswith(_ATTENTION):
        # A kept result draws no random numbers again, so dropout after it would draw other ones.
        return not _has_dropout(schema, args, kwargs)
    if name in _PRODUCTS:
        left, right = (args[place] for place in _PRODUCTS[name])
        return bool(left.shape[-1] >= right.shape[-1])
    return name in _PRODUCTS_WITH_WEIGHTS


def _has_dropout(schema: Any, args: Any, kwargs: Any) -> bool:
    for place, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
            return bool(given > 0)
    return False
