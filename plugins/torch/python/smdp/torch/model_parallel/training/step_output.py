"""What a step function returned, microbatch by microbatch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class StepOutput:
    """One returned tensor of all microbatches.

    Args:
        outputs: By microbatch.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._outputs = list(outputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors, by microbatch."""
        return list(self._outputs)

    def reduce_mean(self) -> Tensor:
        """Give the mean over microbatches."""
        return self.stack().mean(dim=0)

    def reduce_sum(self) -> Tensor:
        """Give the sum over microbatches."""
        return self.stack().sum(dim=0)

    def concat(self, axis: int = 0) -> Tensor:
        """Give the batch: the tensors one after the other, along an axis; of numbers, a vector."""
        if self._outputs[0].dim() == 0:
            return self.stack()
        return torch.cat(self._outputs, dim=axis)

    def merge(self) -> Tensor:
        """Give the batch, as concat()."""
        return self.concat()

    def stack(self) -> Tensor:
        """Give the tensors along a new first axis.

        Raises:
            ValueError: Their shapes differ.
        """
        shapes = {tuple(tensor.shape) for tensor in self._outputs}
        if len(shapes) > 1:
            raise ValueError(
                f"[smdp] microbatches gave tensors of shapes {sorted(shapes)}, which cannot be reduced or"
                " stacked; allowed: equal shapes, or .outputs"
            )
        return torch.stack(self._outputs)

    def detach(self) -> StepOutput:
        """Give the same without gradients; a StepOutput again."""
        return StepOutput([tensor.detach() for tensor in self._outputs])

    def __repr__(self) -> str:
        """Show type and shape."""
        first = self._outputs[0]
        dtype = str(first.dtype).removeprefix("torch.")
        return f"StepOutput({len(self._outputs)} x {dtype}{list(first.shape)})"


def gathered(results: Sequence[Any]) -> Any:
    """Give what a step returns: its function's results, turned inside out.

    Args:
        results: By microbatch; alike in structure.

    Returns:
        A StepOutput where they are tensors, a list of them where they are neither tensors nor structures, and
        the same structure of these otherwise. None if the function returned nothing.

    Raises:
        ValueError: The structures differ.
    """
    if all(result is None for result in results):
        return None
    return _gathered(results)


def _gathered(results: Sequence[Any]) -> Any:
    first = results[0]
    if all(isinstance(result, Tensor) for result in results):
        return StepOutput(results)
    if not any(_is_structure(result) or isinstance(result, Tensor) for result in results):
        return list(results)
    if any(type(result) is not type(first) or _keys(result) != _keys(first) for result in results):
        raise ValueError(
            "[smdp] the step function returned different structures for different microbatches:"
            f" {sorted({_text(result) for result in results})}; allowed: the same for all"
        )
    return _mapped(first, lambda key: _gathered([_item(result, key) for result in results]))


def _is_structure(tree: Any) -> bool:
    return isinstance(tree, (list, tuple, Mapping)) or (
        dataclasses.is_dataclass(tree) and not isinstance(tree, type)
    )


def _keys(tree: Any) -> list[Any]:
    if not _is_structure(tree):
        return []
    if isinstance(tree, Mapping):
        return list(tree)
    if isinstance(tree, (list, tuple)):
        return list(range(len(tree)))
    return [field.name for field in dataclasses.fields(tree)]


def _item(tree: Any, key: Any) -> Any:
    return tree[key] if isinstance(tree, (list, tuple, Mapping)) else getattr(tree, key)


def _mapped(tree: Any, value: Callable[[Any], Any]) -> Any:
    values = {key: value(key) for key in _keys(tree)}
    if isinstance(tree, Mapping):
        found = copy.copy(tree)
        for key, item in values.items():
            found[key] = item  # type: ignore[index]
        return found
    if isinstance(tree, (list, tuple)):
        return type(tree)(*values.values()) if hasattr(tree, "_fields") else type(tree)(values.values())
    return dataclasses.replace(tree, **values)


def _text(tree: Any) -> str:
    return f"{type(tree).__name__} of {_keys(tree)}" if _is_structure(tree) else type(tree).__name__
