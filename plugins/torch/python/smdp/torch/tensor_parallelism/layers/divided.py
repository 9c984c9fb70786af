"""Turns a module into one that holds a slice of its parameters, in place."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from smdp.torch.mesh.cuts import Cut, cut_of, mark_cut
from smdp.torch.mesh.slices import Slices
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

M = TypeVar("M", bound=nn.Module)


class Divided(nn.Module):
    """Base class of modules that hold a slice of a layer.

    Attributes:
        tensor_axis: The ranks that hold the slices.
    """

    tensor_axis: TensorAxis

    def extra_repr(self) -> str:
        """Returns the description of the whole layer, and the number of ranks."""
        return f"{super().extra_repr()}, tensor_parallel={self.tensor_axis.size}"


def divide(module: nn.Module, kind: type[M], axis: TensorAxis, **options: Any) -> M:
    """Changes the class of a module to one that derives from `kind` and from its present class.

    The module stays the same object, so names, hooks and ties to other modules stay as they are.
    """
    changed: Any = module
    target: Any = kind
    changed.__class__ = _derived(target, changed.__class__)
    changed.tensor_axis = axis
    for name, value in options.items():
        setattr(changed, name, value)
    return cast("M", changed)


@functools.cache
def _derived(kind: Any, present: Any) -> Any:
    made = type(f"{kind.__name__}{present.__name__}", (kind, present), {})
    made.__module__ = present.__module__
    return made


def cut_parameter(
    parameter: Tensor | None, slices: Slices, axis: TensorAxis, *, is_counted: bool | tuple[bool, ...] = True
) -> None:
    """Replaces the values of a parameter by this rank's slices. A parameter that has been cut stays as it is.

    The parameter stays the same object, so an optimizer without state keeps working.
    """
    if parameter is None or cut_of(parameter) is not None:
        return
    parameter.data = slices.take(parameter.data)
    mark_cut(parameter, Cut("tp", axis.mesh, slices, is_counted))
