"""Values of divided parameters in checkpoints, which have the coordinates of the whole parameters.

A checkpoint thus does not depend on the number of ranks over which layers are divided. This works for
parameters and for the optimizer's state of them, also if that is sharded over replicas: then this rank has
boxes of its slice, and each box lies in one or more boxes of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from smdp.torch.checkpoints.shards import boxed
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.slices import Slices
from smdp.torch.sharding.boxed_tensor import BoxedTensor
from smdp.torch.sharding.boxes import Box


class DividedValues(BoxedTensor):
    """A tensor with the shape of a whole one, of which this rank has slices.

    Attributes:
        part: This rank's slices one after another, or a BoxedTensor of their shape.
        slices: Where they are in the whole tensor.
        numbers: The ranges of `slices` that are saved or loaded.
    """

    part: Tensor
    slices: Slices
    numbers: frozenset[int]

    @staticmethod
    def __new__(cls, part: Tensor, slices: Slices, numbers: Iterable[int] | None = None) -> DividedValues:
        """Creates a tensor that shares the memory of `part`. By default, all ranges are saved or loaded."""
        make: Any = torch.Tensor._make_wrapper_subclass
        made: DividedValues = make(cls, slices.shape, dtype=part.dtype, device=part.device)
        made.part, made.slices = part, slices
        made.numbers = frozenset(range(len(slices.ranges)) if numbers is None else numbers)
        return made

    def __repr__(self) -> str:
        """Returns the shape and this rank's slices."""
        return f"DividedValues({tuple(self.shape)}, {self.dtype}, {self.slices.ranges} on this rank)"

    def boxes(self) -> Iterator[tuple[Box, Tensor]]:
        """Yields this rank's boxes of the whole tensor, and views of their values."""
        part, dim = self.part, self.slices.dim
        is_boxed = isinstance(part, BoxedTensor)
        inner = part.boxes() if is_boxed else [(Box((0,) * part.dim(), tuple(part.shape)), part)]
        for box, values in inner:
            first = box.offsets[dim]
            for low, high, number in self.slices.within(first, box.sizes[dim]):
                if number in self.numbers:
                    place = self.slices.place_of(low, number)
                    found = Box(_with(box.offsets, dim, place), _with(box.sizes, dim, high - low))
                    yield found, values.narrow(dim, low - first, high - low)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses operations."""
        raise RuntimeError(f"[smdp] {func} of a tensor that is divided over ranks. Use its part.")


def slices_of(tensor: object) -> Slices | None:
    """Returns the slices that this rank has of a tensor, or None if it is whole or not a tensor."""
    cut = cut_of(tensor) if isinstance(tensor, Tensor) else None
    return None if cut is None else cut.slices


def whole_shape(tensor: Tensor) -> torch.Size:
    """Returns the shape of a tensor in one process."""
    slices = slices_of(tensor)
    return tensor.shape if slices is None else torch.Size(slices.shape)


def in_whole(value: Any, *, is_saved: bool) -> Any:
    """Returns an entry of a model with the coordinates of the whole model. It shares the memory.

    Args:
        value: The entry.
        is_saved: Whether the ranges that another rank saves are left out.
    """
    if not isinstance(value, Tensor):
        return value
    slices = slices_of(value)
    if slices is None:
        return value.detach()
    return DividedValues(boxed(value.detach()), slices, _saved_ranges(value) if is_saved else None)


def _saved_ranges(tensor: Tensor) -> list[int] | None:
    cut = cut_of(tensor)
    if cut is None or isinstance(cut.is_counted, bool):
        return None
    return [number for number, is_counted in enumerate(cut.is_counted) if is_counted]


def state_in_whole(flat: Mapping[str, Any], name: str, parameter: Tensor) -> dict[str, Any]:
    """Returns the optimizer's state of a parameter with the coordinates of the whole parameter.

    Args:
        flat: The state and hyperparameters by the keys of a checkpoint.
        name: The name of the parameter.
        parameter: This rank's part of it.

    Raises:
        ValueError: The state of the whole parameter cannot be made from the states of its slices.
    """
    slices = slices_of(parameter)
    if slices is None:
        return dict(flat)
    found: dict[str, Any] = {}
    for key, value in flat.items():
        found[key] = value
        if not key.startswith("state.") or not isinstance(value, Tensor):
            continue
        if value.shape == parameter.shape:
            found[key] = DividedValues(boxed(value), slices, _saved_ranges(parameter))
        elif value.numel() > 1:
            raise ValueError(_not_by_elements(key, value.shape, name, parameter.shape))
    return found


def check_by_elements(key: str, shape: torch.Size, name: str, parameter: Tensor) -> None:
    """Checks that a rank can take its part of the saved state of a divided parameter.

    Raises:
        ValueError: The state is neither one number nor one for each element of the whole parameter.
    """
    if shape.numel() > 1 and shape != whole_shape(parameter):
        raise ValueError(_not_by_elements(key, shape, name, whole_shape(parameter)))


def _not_by_elements(key: str, shape: torch.Size, name: str, expected: torch.Size) -> str:
    return (
        f"[smdp] the optimizer's state {key!r} has shape {list(shape)}, and parameter {name!r} has shape"
        f" {list(expected)} and is divided over ranks. A checkpoint of a divided model can contain only state"
        " with one number for each element or for each parameter. Use such an optimizer, for example AdamW,"
        " or leave the optimizer out."
    )


def _with(numbers: tuple[int, ...], dim: int, number: int) -> tuple[int, ...]:
    return (*numbers[:dim], number, *numbers[dim + 1 :])
