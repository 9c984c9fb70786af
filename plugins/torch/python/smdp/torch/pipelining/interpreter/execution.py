"""Executes planned operations: computes those of this rank, and returns placeholders for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from smdp.torch.pipelining.interpreter.computation import Computed, compute
from smdp.torch.pipelining.interpreter.execution_context import ExecutionContext
from smdp.torch.pipelining.interpreter.plan import Operation
from smdp.torch.pipelining.interpreter.position import Position
from smdp.torch.pipelining.interpreter.refusals import kept_text
from smdp.torch.pipelining.tensors.containers import leaves_in, map_tensors
from smdp.torch.pipelining.tensors.random_streams import RandomStream
from smdp.torch.pipelining.tensors.values import mark, mark_writer, value_of
from smdp.torch.pipelining.units.observation import tell
from smdp.torch.pipelining.units.unit_call import Unit


class Execution:
    """Returns the results of operations to the program, and keeps values that other stages use.

    Args:
        position: The position of the microbatch in the program.
        context: Transfers values and suspends the program.
        stream: The random numbers of the microbatch.

    Attributes:
        has_renewed: Whether tensors have been changed in place.
    """

    def __init__(self, position: Position, context: ExecutionContext, stream: RandomStream) -> None:
        self.has_renewed = False
        self._position = position
        self._context = context
        self._own = context.own
        self._stream = stream
        self._renewed: dict[int, tuple[Tensor, Tensor]] = {}

    def renewed(self, tensor: Tensor) -> Tensor:
        """Returns the current form of a tensor that operations may have changed in place."""
        while (found := self._renewed.get(id(tensor))) is not None:
            tensor = found[1]
        return tensor

    def perform(self, operation: Operation, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        """Returns the result of an operation, or placeholders if another rank computes it."""
        if operation.stage not in self._own:
            return self.placeholders(operation, args, kwargs)
        return self.keep(operation, self.compute(operation, args, kwargs, call))

    def compute(self, operation: Operation, args: Any, kwargs: Any, call: Callable[..., Any]) -> Computed:
        """Computes an operation of this rank."""
        is_recording = self._position.is_recording
        return compute(operation, args, kwargs, call, self._context, self._stream, is_recording=is_recording)

    def placeholders(self, operation: Operation, args: Any, kwargs: Any) -> Any:
        """Returns placeholders for another rank's operation, and passes them to hooks inside of it."""
        if isinstance(operation.function, Unit):
            for name, output in operation.observed:
                tell(operation.function.module.get_submodule(name), output)
        if not operation.changes and not operation.same:
            return operation.result
        inputs = leaves_in((args, kwargs))
        self._renew(operation, inputs, operation.changed)
        return _with_inputs(operation, operation.result, inputs)

    def keep(self, operation: Operation, real: Computed) -> Any:
        """Marks the tensors of a result with their values, and returns the result."""
        if len(real.tensors) != len(operation.values):
            raise RuntimeError(
                f"[smdp] {operation.name} returned {len(real.tensors)} tensors, but other ranks expect"
                f" {len(operation.values)}"
            )
        if operation.changes:
            self._renew(operation, real.inputs, real.changed)
        position = self._position
        given = {place for place, _ in operation.same} if operation.same else ()
        for place, (tensor, value) in enumerate(zip(real.tensors, operation.values, strict=True)):
            if type(tensor) is FakeTensor:
                raise ValueError(kept_text(operation.name, position.foreign_units(self._own)))
            if tensor.shape != value.shape or tensor.dtype != value.dtype:
                raise RuntimeError(
                    f"[smdp] {operation.name} returned {str(tensor.dtype).removeprefix('torch.')}"
                    f"{list(tensor.shape)}, but other ranks expect {value.text()}. The shape depends on"
                    " values, and such a tensor cannot cross a stage boundary."
                )
            if place in given:
                continue
            mark(tensor, value)
            if value.consumers or (position.is_recording and not position.is_detour):
                self._context.export(value, tensor)
            if value.is_handed_round and position.is_in_model:
                # If this rank ends the model's forward early, the model returns only placeholders.
                self._context.note_returned(value, tensor)
        return _with_inputs(operation, real.result, real.inputs)

    def _renew(self, operation: Operation, inputs: list[Tensor], changed: Sequence[Tensor]) -> None:
        """Redirects the program's references to tensors that were changed in place to their current form."""
        for place, tensor in zip(operation.changes, changed, strict=True):
            if not isinstance(inputs[place], Tensor):
                continue  # this was a tensor in the first microbatch
            if value_of(inputs[place]) is None:
                mark_writer(inputs[place], operation.stage)
            if inputs[place] is not tensor:
                self._renewed[id(inputs[place])] = inputs[place], tensor
                self.has_renewed = True


def _with_inputs(operation: Operation, result: Any, inputs: list[Tensor]) -> Any:
    """Returns a result in which tensors that the operation returns unchanged are the inputs themselves."""
    if not operation.same:
        return result
    same = dict(operation.same)
    place = -1

    def chosen(tensor: Tensor) -> Tensor:
        nonlocal place
        place += 1
        return inputs[same[place]] if place in same else tensor

    return map_tensors(chosen, result)
