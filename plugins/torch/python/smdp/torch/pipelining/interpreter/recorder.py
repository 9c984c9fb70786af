"""Records a program: the predicted results of operations, and the stages that use each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.ghosts.ghosts import Ghosts, Prediction, Unpredictable
from smdp.torch.pipelining.interpreter.aliases import Aliases
from smdp.torch.pipelining.interpreter.computation import Computed
from smdp.torch.pipelining.interpreter.execution import Execution
from smdp.torch.pipelining.interpreter.execution_context import ExecutionContext
from smdp.torch.pipelining.interpreter.outside_tensors import parameter_behind
from smdp.torch.pipelining.interpreter.plan import Kind, Operation
from smdp.torch.pipelining.interpreter.position import Position
from smdp.torch.pipelining.interpreter.refusals import (
    foreign_weight_text,
    strange_weight_text,
    unpredictable_text,
)
from smdp.torch.pipelining.interpreter.weight_writes import WeightWrites
from smdp.torch.pipelining.tensors.containers import leaves_in, map_tensors, tensors_in
from smdp.torch.pipelining.tensors.functions import KEEPS_STATISTICS, name_of
from smdp.torch.pipelining.tensors.values import Value, mark, mark_writer, value_of, weight_of
from smdp.torch.pipelining.units.side_effects import without_side_effects
from smdp.torch.pipelining.units.unit_call import Unit


class Recorder:
    """Adds operations to the plan while they are executed.

    Args:
        position: The position of the microbatch, which advances with each operation.
        context: Transfers values and suspends the program.
        ghosts: Runs operations on placeholders.
        execution: Executes recorded operations.
    """

    def __init__(
        self, position: Position, context: ExecutionContext, ghosts: Ghosts, execution: Execution
    ) -> None:
        self._position = position
        self._context = context
        self._own = context.own
        self._ghosts = ghosts
        self._execution = execution
        self._aliases = Aliases()
        self._weight_writes = WeightWrites()
        self._has_part = True

    def record(
        self,
        function: Any,
        kind: Kind,
        args: Any,
        kwargs: Any,
        name: str,
        call: Callable[..., Any],
        modes: Sequence[Any],
    ) -> Any:
        """Adds an operation of a stage to the plan, and returns its result.

        Args:
            function: The unit or torch function that the program calls.
            kind: How it is executed.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            name: Its name in the plan and in errors.
            call: The function that computes it.
            modes: The torch modes around the call of a unit.
        """
        stage = self._position.stage
        for tensor in tensors_in((args, kwargs)):
            self._connect(tensor, stage, name)
        is_mine = stage in self._own
        if self._has_part and not is_mine and self._position.is_in_model:
            self._context.watch()
        self._has_part = is_mine
        operation = Operation(function, kind, stage, None, False, name)
        predicted, computed = self._predict(operation, args, kwargs, call, modes)
        operation.draws = predicted.draws
        operation.changes = predicted.changes
        operation.same = predicted.same
        operation.result, operation.observed, operation.changed = self._valued(operation, predicted)
        if kind is Kind.GLUE and name_of(function) in KEEPS_STATISTICS:
            for tensor in tensors_in(args[1:3]):
                mark_writer(tensor, stage)
        inputs = leaves_in((args, kwargs))
        self._weight_writes.note(operation, predicted, inputs)
        for place, value in enumerate(operation.values):
            places = range(len(inputs)) if predicted.sources is None else predicted.sources[place]
            found = [value_of(inputs[each]) for each in places if isinstance(inputs[each], Tensor)]
            value.sources = tuple(source for source in found if source is not None)
        self._aliases.note(operation, predicted.shares, inputs)
        self._append(operation)
        if computed is not None:
            return self._execution.keep(operation, computed)
        return self._execution.perform(operation, args, kwargs, call)

    def record_read(self, function: Any, name: str) -> None:
        """Adds a host read to the plan; every rank performs it, with values sent by their owners."""
        self._append(Operation(function, Kind.READ, self._position.stage, None, False, name))
        self._has_part = True

    def _append(self, operation: Operation) -> None:
        self._position.plan.operations.append(operation)
        self._position.place += 1

    def _predict(
        self,
        operation: Operation,
        args: Any,
        kwargs: Any,
        call: Callable[..., Any],
        modes: Sequence[Any],
    ) -> tuple[Prediction, Computed | None]:
        """Returns an operation's prediction, and its result if the prediction required it."""
        function, name = operation.function, operation.name
        is_mine = operation.stage in self._own
        try:
            if not isinstance(function, Unit):
                return self._ghosts.run(function, args, kwargs), None
            # Predicted before it is computed, so that side effects on its module happen once.
            with without_side_effects(function.module, but_placeholders=not is_mine):
                return self._ghosts.run_unit(function, args, kwargs, modes), None
        except Unpredictable as error:
            if not isinstance(function, Unit):
                is_in_model = self._position.is_in_model
                raise ValueError(unpredictable_text(name, error, is_in_model=is_in_model)) from error
            operation.draws = True
            computed = self._execution.compute(operation, args, kwargs, call) if is_mine else None
            real = None if computed is None else (computed.result, computed.observed)
            return Prediction(*self._context.describe(function, operation.stage, real)), computed

    def _valued(self, operation: Operation, predicted: Prediction) -> Any:
        """Creates a value for each placeholder; placeholders that are the same object share one."""
        values: dict[int, Value] = {}
        known = self._position.plan.values

        def valued(ghost: Tensor) -> Tensor:
            if id(ghost) not in values:
                values[id(ghost)] = Value(len(known), operation.stage, ghost)
                known.append(values[id(ghost)])
                mark(ghost, values[id(ghost)])
            operation.values.append(values[id(ghost)])
            return ghost

        return map_tensors(valued, (predicted.result, predicted.observed, predicted.changed))

    def _connect(self, tensor: Tensor, stage: int, name: str) -> None:
        """Records that a stage uses a tensor; raises if the stage cannot use it."""
        is_in_model = self._position.is_in_model
        weight = weight_of(tensor)
        if weight is None and not is_in_model and (strange := parameter_behind(tensor)) is not None:
            raise ValueError(strange_weight_text(name, strange))
        if weight is not None and stage not in weight.stages:
            raise ValueError(
                foreign_weight_text(name, stage, weight.name, self._context.wording, is_in_model=is_in_model)
            )
        value = value_of(tensor)
        if value is not None:
            self._aliases.check(value, name)
        if value is None or value.stage == stage or stage in value.consumers:
            return
        if self._position.is_detour:
            raise RuntimeError(
                "[smdp] the code around the model takes a different path from the first microbatch, and"
                f" {name} needs {value.text()} of stage {value.stage} on stage {stage}. That transfer was not"
                " planned. Run the same code for every microbatch."
            )
        self._position.plan.connect(value, stage)
        if value.stage in self._own and stage not in self._own:
            self._context.send(value, tensor, stage)
