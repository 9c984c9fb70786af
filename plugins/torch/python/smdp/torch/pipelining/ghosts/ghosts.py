"""Predicts the results of operations as placeholders, without computing and without inputs' contents."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from smdp.torch.pipelining.ghosts.unit_writes import UnitWrites
from smdp.torch.pipelining.tensors.containers import leaves_in, map_tensors, tensors_in
from smdp.torch.pipelining.tensors.differentiation import graph_inputs
from smdp.torch.pipelining.tensors.functions import name_of, quietly
from smdp.torch.pipelining.tensors.values import memory_of, value_of, weight_of
from smdp.torch.pipelining.units.current_microbatch import is_running
from smdp.torch.pipelining.units.observation import Observer, observed_modules
from smdp.torch.pipelining.units.side_effects import Filled
from smdp.torch.pipelining.units.unit_call import Unit, under

_PLAIN = (str, int, float, bool, complex, type(None), type, nn.Module, torch.dtype, torch.device)


class Unpredictable(Exception):
    """An operation whose result cannot be predicted.

    Its shape depends on values, the operation has no meta kernel, or it fails.

    Args:
        error: The exception that the operation raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.needs_values = isinstance(error, (DynamicOutputShapeException, DataDependentOutputException))


@dataclass(slots=True)
class Prediction:
    """The predicted effects of an operation.

    Attributes:
        result: The return value, with placeholders for tensors.
        observed: (Name, output) of modules with hooks inside a unit.
        changes: Indices of the input tensors that it changes in place, in the order of tensors_in().
        changed: Placeholders for these tensors after the change.
        same: (Index in the result, index in the inputs) of tensors that it returns unchanged.
        shares: For each tensor of result, observed and changed, the index of the input whose memory it
            shares; -1 if there is none.
        draws: Whether it draws random numbers.
        sources: For each of these tensors, the inputs from which autograd derived it. None: any of them.
        written: The name of a parameter that a unit changes in place; empty if there is none.
    """

    result: Any
    observed: list[tuple[str, Any]]
    changes: tuple[int, ...] = ()
    changed: tuple[Tensor, ...] = ()
    same: tuple[tuple[int, int], ...] = ()
    shares: tuple[int, ...] = ()
    draws: bool = True
    sources: tuple[tuple[int, ...], ...] | None = None
    written: str = ""


class Ghosts:
    """Runs operations on placeholders.

    Args:
        device: The device on which the model computes, which placeholders of its parameters report.
    """

    def __init__(self, device: torch.device) -> None:
        self._mode = _Placeholders(allow_non_fake_inputs=True)
        self._device = device
        self._parameters: dict[int, tuple[Tensor, Tensor]] = {}

    def run(self, function: Any, args: Any, kwargs: Any) -> Prediction:
        """Returns the predicted effects of a torch function.

        Raises:
            Unpredictable: The effects cannot be predicted without computing.
        """
        like = _like_ctc_loss if name_of(function) == "ctc_loss" else function
        return self._predict((args, kwargs), lambda args, kwargs: (like(*args, **kwargs), []))

    def run_unit(self, unit: Unit, args: Any, kwargs: Any, modes: Sequence[Any]) -> Prediction:
        """Returns the predicted effects of a unit's call.

        The unit's parameters may be on another rank; `modes` are the torch modes around the call.

        Raises:
            Unpredictable: The effects cannot be predicted without computing.
            ValueError: The unit puts tensors into its arguments.
        """
        bare = _Bare(unit)
        filled: list[Filled] = []
        weights = {name: self._state(tensor) for name, tensor in bare.named_parameters()}
        writes = UnitWrites(weights)
        states = weights | {name: self._state(tensor) for name, tensor in bare.named_buffers()}

        def call(args: Any, kwargs: Any) -> Any:
            args, kwargs = _separate((args, kwargs))
            filled.append(Filled(args, kwargs))
            with Observer(observed_modules(unit.module), is_silent=True) as observer, writes:
                with under(modes):
                    result = torch.func.functional_call(bare, states, args, kwargs)
            return result, observer.outputs

        prediction = self._predict((args, kwargs), call)
        filled[0].check(unit.name)
        prediction.written = writes.first().removeprefix("module.")
        return prediction

    def receive(self, shape: Any, stride: Any, dtype: torch.dtype, needs_grad: bool) -> Tensor:
        """Returns a placeholder for a tensor that its owner has described."""
        with self._mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=self._device).requires_grad_(
                needs_grad
            )

    def _predict(self, given: Any, call: Callable[[Any, Any], Any]) -> Prediction:
        draws = _Draws()
        copies: dict[int, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = self._copy(tensor)
            return copies[id(tensor)]

        try:
            args, kwargs = map_tensors(copied, given)
            inputs = dict(_numbered_tensors((args, kwargs)))
            versions = {place: tensor._version for place, tensor in inputs.items()}
            nodes = {tensor.grad_fn: place for place, tensor in inputs.items() if tensor.grad_fn is not None}
            with quietly(), self._mode, draws:
                result, observed = call(args, kwargs)
        except Exception as error:
            raise Unpredictable(error) from error
        changes = tuple(place for place, tensor in inputs.items() if tensor._version != versions[place])
        changed = tuple(inputs[place] for place in changes)
        places = {id(tensor): place for place, tensor in inputs.items() if place not in changes}
        same = tuple(
            (index, places[id(tensor)])
            for index, tensor in enumerate(tensors_in(result))
            if id(tensor) in places
        )
        memory = {memory_of(tensor): place for place, tensor in inputs.items()}
        made = tensors_in((result, observed, changed))
        shares = tuple(memory.get(memory_of(tensor), -1) for tensor in made)
        sources = tuple(graph_inputs(tensor, nodes) for tensor in made)
        stripped: dict[int, Tensor] = {}

        def strip(tensor: Tensor) -> Tensor:
            """Returns a tensor without its graph; the same object for the same tensor."""
            if id(tensor) not in stripped:
                with self._mode:
                    stripped[id(tensor)] = tensor.detach().requires_grad_(tensor.requires_grad)
            return stripped[id(tensor)]

        result, observed, changed = map_tensors(strip, (result, observed, changed))
        return Prediction(result, observed, changes, changed, same, shares, draws.any, sources)

    def _copy(self, tensor: Tensor) -> Tensor:
        """Returns a placeholder that may be changed in place, which autograd does not allow for a leaf."""
        value = value_of(tensor)
        if value is not None:
            ghost = value.ghost
        elif weight_of(tensor) is not None:
            ghost = self._state(tensor)
        else:
            ghost = self._mode.from_tensor(tensor)
        with self._mode, torch.enable_grad():
            if torch.ops.aten.is_non_overlapping_and_dense(ghost):
                return ghost.clone()
            # clone() would close the gaps between elements, on which contiguous(), for example, depends.
            count = ghost.untyped_storage().nbytes() // ghost.element_size()
            memory = torch.empty(count, dtype=ghost.dtype, device=ghost.device)
            whole = memory.requires_grad_(ghost.requires_grad).clone()
            return whole.as_strided(ghost.shape, ghost.stride(), ghost.storage_offset())

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


class PlaceholderRead(DataDependentOutputException):
    """The error when code reads the contents of a placeholder after its step."""

    def __str__(self) -> str:
        return (
            "[smdp] this tensor is a placeholder that was kept from a step; its contents are on another rank."
            " Read it, for example by .item(), within the step, or return it from the step."
        )


class _Placeholders(FakeTensorMode):
    """Raises an error that explains placeholders, where torch's error would only name an operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException as error:
            if is_running():
                raise
            raise PlaceholderRead(error.func) from None


def _like_ctc_loss(
    log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> Tensor:
    """Returns a tensor with the shape and graph of a CTC loss, whose inner tables depend on the lengths."""
    if torch.is_autocast_enabled(log_probs.device.type):
        log_probs = log_probs.float()
    reduction = options[1] if len(options) > 1 else named.get("reduction", "mean")
    is_each = reduction in ("none", 0) and log_probs.dim() == 3
    return log_probs.sum((0, 2)) if is_each else log_probs.sum()


def _numbered_tensors(tree: Any) -> Iterator[tuple[int, Tensor]]:
    return ((place, leaf) for place, leaf in enumerate(leaves_in(tree)) if isinstance(leaf, Tensor))


class _Bare(nn.Module):
    """Calls a unit's own forward without its hooks."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.module = unit.module
        self._unit = unit

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._unit.plain(*args, **kwargs)


class _Draws(TorchDispatchMode):
    """Detects whether an operation draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.any = True
        return func(*args, **(kwargs or {}))


def _separate(tree: Any) -> Any:
    """Copies arguments that a unit might fill, such as caches, to keep placeholders out of them."""

    def copied(item: Any) -> Any:
        if isinstance(item, (Tensor, Parameter, *_PLAIN)) or callable(item):
            return item
        if isinstance(item, (list, tuple, dict)) or hasattr(item, "__dataclass_fields__"):
            return item if tensors_in(item) else _try_copy(item)
        return _try_copy(item)

    args, kwargs = tree
    return tuple(copied(item) for item in args), {name: copied(item) for name, item in kwargs.items()}


def _try_copy(item: Any) -> Any:
    try:
        return copy.deepcopy(item)
    except Exception:  # noqa: BLE001 - objects that cannot be copied are shared
        return item
