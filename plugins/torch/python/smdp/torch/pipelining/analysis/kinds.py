"""Names of kinds of calls; calls of one kind have the same cost, and their measurements are pooled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

# The cost of a call may depend on arguments of these types.
_TELLING = (bool, int, float, str, type(None))


def kind_of_unit(
    module: nn.Module, args: Any, kwargs: Any, has_gradient: Callable[[Tensor], bool], is_checkpointed: bool
) -> str:
    """Returns a name shared by calls with the same classes of modules and shapes of parameters and inputs."""
    classes = [f"{type(each).__module__}.{type(each).__qualname__}" for each in module.modules()]
    weights = [(*_form(each), each.requires_grad) for each in module.parameters()]
    return _name(classes, weights, is_checkpointed, _inputs(args, kwargs, has_gradient))


def kind_of_function(name: str, args: Any, kwargs: Any, has_gradient: Callable[[Tensor], bool]) -> str:
    """Returns a name shared by calls of a torch function with the same shapes of inputs."""
    return _name(name, _inputs(args, kwargs, has_gradient))


def _inputs(args: Any, kwargs: Any, has_gradient: Callable[[Tensor], bool]) -> list[Any]:
    leaves, structure = tree_flatten((args, kwargs))
    return [str(structure), *(_input(leaf, has_gradient) for leaf in leaves)]


def _input(leaf: Any, has_gradient: Callable[[Tensor], bool]) -> Any:
    if isinstance(leaf, Tensor):
        return (*_form(leaf), has_gradient(leaf))
    return leaf if isinstance(leaf, _TELLING) else type(leaf).__qualname__


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), str(tensor.dtype), str(tensor.device.type)


def _name(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
