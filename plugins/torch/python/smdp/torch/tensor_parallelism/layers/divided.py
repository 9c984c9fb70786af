"""Turns a module into one that holds a slice of its parameters, in place."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from smdp.torch.initialization.delayed_initialization import recording
from smdp.torch.mesh.cuts import Cut, cut_of, mark_cut
from smdp.torch.mesh.slices import Slices
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

M = TypeVar("M", bound=nn.Module)

_CUTS = "_smdp_cuts"


class Divided(nn.Module):
    """Base class of modules that hold a slice of a layer.

    Copies and conversions keep the cuts of parameters.

    Attributes:
        tensor_axis: The ranks that hold the slices.
    """

    tensor_axis: TensorAxis

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of a copy, with the cuts, because torch copies parameters without their marks."""
        own: Any = getattr(super(), "__getstate__", None)  # all objects have it since Python 3.11
        return {**(self.__dict__ if own is None else own()), _CUTS: self._cuts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy."""
        cuts = state.pop(_CUTS)
        super().__setstate__(state)
        self._mark(cuts)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Converts the parameters, which may replace them."""
        cuts = self._cuts()
        found = super()._apply(fn, recurse)
        self._mark(cuts)
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Loads this rank's slices."""
        cuts = self._cuts()
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._mark(cuts)  # with assign=True, the parameters are new

    def _cuts(self) -> dict[str, Cut]:
        """Returns how the module's own parameters are cut, by name."""
        own = ((name, one) for name, one in self._parameters.items() if one is not None)
        return {name: cut for name, one in own if (cut := cut_of(one)) is not None}

    def _mark(self, cuts: dict[str, Cut]) -> None:
        for name, cut in cuts.items():
            mark_cut(cast("Tensor", self._parameters[name]), cut)

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
    with recording(parameter):
        parameter.data = slices.take(parameter.data)
    mark_cut(parameter, Cut("tp", axis.mesh, slices, is_counted))
