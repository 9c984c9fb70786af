"""The results of a step function, by microbatch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class StepOutput:
    """A tensor that a step function returned for each microbatch.

    Args:
        outputs: The tensors, one per microbatch.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self._outputs = list(outputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors, one per microbatch."""
        return list(self._outputs)

    def reduce_mean(self) -> Tensor:
        """Returns the mean over microbatches."""
        return self.stack().mean(dim=0)

    def reduce_sum(self) -> Tensor:
        """Returns the sum over microbatches."""
        return self.stack().sum(dim=0)

    def concat(self, axis: int = 0) -> Tensor:
        """Returns the tensors concatenated along an axis; scalars become a vector."""
        if self._outputs[0].dim() == 0:
            return self.stack()
        return torch.cat(self._outputs, dim=axis)

    def merge(self) -> Tensor:
        """Returns the tensors concatenated along axis 0, like concat()."""
        return self.concat()

    def stack(self) -> Tensor:
        """Returns the tensors stacked along a new first axis.

        Raises:
            ValueError: Their shapes differ.
        """
        shapes = {tuple(tensor.shape) for tensor in self._outputs}
        if len(shapes) > 1:
            raise ValueError(
                f"[smdp] microbatches returned tensors of different shapes {sorted(shapes)}, which cannot be"
                " reduced or stacked; return equal shapes, or use .outputs"
            )
        return torch.stack(self._outputs)

    def detach(self) -> StepOutput:
        """Returns a StepOutput with detached tensors."""
        return StepOutput([tensor.detach() for tensor in self._outputs])

    def __repr__(self) -> str:
        """Returns a text with the number of microbatches, dtype and shape."""
        first = self._outputs[0]
        dtype = str(first.dtype).removeprefix("torch.")
        return f"StepOutput({len(self._outputs)} x {dtype}{list(first.shape)})"


def gathered(results: Sequence[Any]) -> Any:
    """Returns the result of a step: its function's results, combined over microbatches.

    Args:
        results: The results by microbatch, which must have the same structure.

    Returns:
        A StepOutput in place of tensors and a list in place of other leaves, in the structure of the results.
        None if the function returned None for every microbatch.

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
            f" {sorted({_text(result) for result in results})}; it must return the same structure for all"
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
