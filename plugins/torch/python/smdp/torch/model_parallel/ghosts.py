"""Placeholders: what an operation would give, without its inputs' contents and without computing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from smdp.torch.model_parallel.containers import map_tensors, tensors_in
from smdp.torch.model_parallel.functions import is_in_place
from smdp.torch.model_parallel.observation import Observer, observed_modules
from smdp.torch.model_parallel.unit_call import Unit
from smdp.torch.model_parallel.values import value_of, weight_of

_PLAIN = (str, int, float, bool, complex, type(None), type, nn.Module, torch.dtype, torch.device)


class Unpredictable(Exception):
    """A result whose shape depends on values, or an operation without a meta kernel."""


class Ghosts:
    """Runs operations on placeholders.

    Args:
        device: Where the model computes; what placeholders of its parameters report.
    """

    def __init__(self, device: torch.device) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._device = device
        self._parameters: dict[int, tuple[Tensor, Tensor]] = {}

    def run(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Give the result with placeholders, and whether random numbers were drawn.

        Raises:
            Unpredictable: It cannot be told without computing.
        """
        placeholder = self._changeable if is_in_place(function) else self._placeholder
        args, kwargs = map_tensors(placeholder, (args, kwargs))
        return self._watch(lambda: function(*args, **kwargs))

    def run_unit(self, unit: Unit, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """The same for a module, whose parameters may be elsewhere.

        Returns:
            (result, what its observed modules gave), and whether random numbers were drawn.
        """
        args, kwargs = _separate(map_tensors(self._placeholder, (args, kwargs)))
        bare = _Bare(unit)
        states = {name: self._state(tensor) for name, tensor in bare.named_parameters()}
        states |= {name: self._state(tensor) for name, tensor in bare.named_buffers()}

        def call() -> Any:
            with Observer(observed_modules(unit.module), is_silent=True) as observer:
                result = torch.func.functional_call(bare, states, args, kwargs)
            return result, observer.outputs

        return self._watch(call)

    def receive(self, shape: Any, stride: Any, dtype: torch.dtype, needs_grad: bool) -> Tensor:
        """Give a placeholder of what its owner has described."""
        with self._mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=self._device).requires_grad_(
                needs_grad
            )

    def _watch(self, call: Any) -> tuple[Any, bool]:
        draws = _Draws()
        try:
            with self._mode, draws:
                result = call()
        except Exception as error:
            raise Unpredictable(f"{type(error).__name__}: {error}") from error
        stripped: dict[int, Tensor] = {}

        def strip(tensor: Tensor) -> Tensor:
            """Give it without its graph; one object for one object."""
            if id(tensor) not in stripped:
                with self._mode:
                    stripped[id(tensor)] = tensor.detach().requires_grad_(tensor.requires_grad)
            return stripped[id(tensor)]

        return map_tensors(strip, result), draws.any

    def _placeholder(self, tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        if value is not None:
            return value.ghost
        if weight_of(tensor) is not None:
            return self._state(tensor)
        return tensor

    def _changeable(self, tensor: Tensor) -> Tensor:
        """Give a placeholder that is no leaf: autograd refuses to change one in place."""
        ghost = self._placeholder(tensor)
        if value_of(tensor) is None and weight_of(tensor) is None:
            return ghost
        with self._mode, torch.enable_grad():
            return ghost.clone()

    def _state(self, tensor: Tensor) -> Tensor:
        known = self._parameters.get(id(tensor))
        if known is not None and known[0] is tensor and known[1].requires_grad == tensor.requires_grad:
            return known[1]
        with self._mode:
            ghost = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
            )
        ghost.requires_grad_(tensor.requires_grad)
        self._parameters[id(tensor)] = (tensor, ghost)
        return ghost


class _Bare(nn.Module):
    """Calls a unit's own forward, past its hooks."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.module = unit.module
        self._unit = unit

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._unit.plain(*args, **kwargs)


class _Draws(TorchDispatchMode):
    """Notes whether an operation draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.any = True
        return func(*args, **(kwargs or {}))


def _separate(tree: Any) -> Any:
    """Copy objects that a unit might fill, caches above all: the placeholders must not end up in them."""

    def copied(item: Any) -> Any:
        if isinstance(item, (Tensor, Parameter, *_PLAIN)) or callable(item):
            return item
        if isinstance(item, (list, tuple, dict)) or hasattr(item, "__dataclass_fields__"):
            return item if next(tensors_in(item), None) is not None else _try_copy(item)
        return _try_copy(item)

    args, kwargs = tree
    return [copied(item) for item in args], {name: copied(item) for name, item in kwargs.items()}


def _try_copy(item: Any) -> Any:
    try:
        return copy.deepcopy(item)
    except Exception:  # noqa: BLE001 - what cannot be copied is shared
        return item
