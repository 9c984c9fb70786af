"""Cuts the arguments of a step function into microbatches."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.tensors.containers import look_into

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# A parameter of the function, and for one that collects several arguments, the key or index of the argument.
Place = tuple[str, str | int | None]


class Slicer:
    """Cuts the arguments of a step function.

    Args:
        function: The step function.
        non_split_inputs: Names of parameters that every microbatch gets whole.
        input_split_axes: The axis along which tensors of a parameter are cut, by its name. Default: 0.

    Attributes:
        name: Name of the function.

    Raises:
        ValueError: A name is not a parameter of the function, or an axis is not an integer.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        non_split_inputs: Collection[str] = (),
        input_split_axes: Mapping[str, int] | None = None,
    ) -> None:
        self._signature = inspect.signature(function)
        self._whole = set(non_split_inputs)
        self._axes = dict(input_split_axes or {})
        self.name = getattr(function, "__name__", type(function).__name__)
        known = self._signature.parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            for name in (*self._whole, *self._axes):
                if name not in known:
                    raise ValueError(
                        f"[smdp] smp.step got the name {name!r}, which is not a parameter of {self.name}; its"
                        f" parameters are {', '.join(known)}"
                    )
        for name, axis in self._axes.items():
            if not isinstance(axis, int) or isinstance(axis, bool):
                raise ValueError(
                    f"[smdp] smp.step has input_split_axes[{name!r}] = {axis!r}; expected an integer"
                )

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_partial: bool) -> dict[Place, Any]:
        """Returns the arguments of a call by their places; see Place.

        Args:
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            is_partial: Whether arguments may be missing, because those of another rank are added.

        Raises:
            TypeError: The function does not accept these arguments.
        """
        bind = self._signature.bind_partial if is_partial else self._signature.bind
        found: dict[Place, Any] = {}
        for name, value in bind(*args, **kwargs).arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found |= {(name, key): item for key, item in value.items()}
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                found |= {(name, index): item for index, item in enumerate(value)}
            else:
                found[name, None] = value
        return found

    def cut(self, given: Mapping[Place, Any], microbatches: int) -> list[Arguments]:
        """Returns the arguments of each microbatch.

        Tensors are cut as views, including those in lists, tuples, sets and mappings. An object with a method
        `smp_slice` returns its part by smp_slice(microbatches, index, axis). Every microbatch gets all other
        objects, and tensors without dimensions, unchanged.

        Args:
            given: The result of given().
            microbatches: Number of microbatches.

        Raises:
            TypeError: An argument is missing.
            ValueError: A tensor cannot be cut into this number of equal parts; the message contains its name
                and size.
        """
        parts = []
        for index in range(microbatches):
            part = self._call(
                {place: self._sliced(place, given[place], index, microbatches) for place in given}
            )
            if index == 0:
                self._signature.bind(*part[0], **part[1])
            parts.append(part)
        return parts

    def _call(self, values: Mapping[Place, Any]) -> Arguments:
        arguments: dict[str, Any] = {}
        for (name, key), value in values.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments.setdefault(name, {})[key] = value
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                arguments[name] = (*arguments.get(name, ()), value)
            else:
                arguments[name] = value
        bound = inspect.BoundArguments(self._signature, arguments)
        return bound.args, bound.kwargs

    def _sliced(self, place: Place, value: Any, index: int, count: int) -> Any:
        name, key = place
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            name = str(key)
        if name in self._whole:
            return value
        shown = f"{name}[{key}]" if kind is inspect.Parameter.VAR_POSITIONAL else name
        return self._part(shown, value, index, count, self._axes.get(name, 0))

    def _part(self, name: str, value: Any, index: int, count: int, axis: int) -> Any:
        if isinstance(value, Tensor):
            return self._narrowed(name, value, index, count, axis)
        if callable(getattr(value, "smp_slice", None)):
            part = value.smp_slice(count, index, axis)
            look_into(type(part))
            return part
        if isinstance(value, (list, tuple, set, frozenset)):
            items = [
                self._part(f"{name}[{place}]", item, index, count, axis) for place, item in enumerate(value)
            ]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, Mapping):
            found = copy.copy(value)
            for key, item in value.items():
                found[key] = self._part(f"{name}[{key!r}]", item, index, count, axis)  # type: ignore[index]
            return found
        return value

    def _narrowed(self, name: str, tensor: Tensor, index: int, count: int, axis: int) -> Tensor:
        if tensor.dim() == 0:
            return tensor
        if not -tensor.dim() <= axis < tensor.dim():
            raise ValueError(
                f"[smdp] {name} of {self.name} has {tensor.dim()} dimensions, so it cannot be cut along axis"
                f" {axis}; input_split_axes can be from {-tensor.dim()} to {tensor.dim() - 1}"
            )
        size = tensor.shape[axis]
        if size == 0 or size % count != 0:
            raise ValueError(
                f"[smdp] {name} of {self.name} has size {size} along axis {axis}, which is not divisible by"
                f" microbatches = {count}; use a multiple of {count} (a DataLoader with drop_last=True drops"
                f" a smaller last batch), or put {name.partition('[')[0]!r} in non_split_inputs"
            )
        each = size // count
        return tensor.narrow(axis, index * each, each)
