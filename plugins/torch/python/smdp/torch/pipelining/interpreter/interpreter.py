"""Ghost execution: the model's own code runs on every rank, each operation is carried out by one.

Inside the mode every function of torch passes through here. What stems from the batch and constants alone
runs everywhere. What touches a stage's value runs on the stage where the program is, and is a placeholder on
other ranks. A value of an earlier stage is sent where the program consumes it: all ranks meet that point, and
know whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from smdp.torch.pipelining.ghosts.ghosts import Ghosts, Prediction, Unpredictable
from smdp.torch.pipelining.interpreter.aliases import Aliases
from smdp.torch.pipelining.interpreter.computation import Computed, compute
from smdp.torch.pipelining.interpreter.execution_context import ExecutionContext
from smdp.torch.pipelining.interpreter.outside_tensors import Births, has_gradient, parameter_behind
from smdp.torch.pipelining.interpreter.plan import Kind, ModelCall, Operation, Plan
from smdp.torch.pipelining.interpreter.refusals import (
    foreign_weight_text,
    kept_text,
    misplaced_text,
    outliving_text,
    strange_weight_text,
    unpredictable_text,
)
from smdp.torch.pipelining.interpreter.weight_writes import WeightWrites
from smdp.torch.pipelining.tensors.containers import leaves_in, map_tensors, tensors_in
from smdp.torch.pipelining.tensors.functions import KEEPS_STATISTICS, METADATA, READS, is_in_place, name_of
from smdp.torch.pipelining.tensors.random_streams import DRAWING, RandomStream
from smdp.torch.pipelining.tensors.values import Value, mark, mark_writer, value_of, weight_of
from smdp.torch.pipelining.transfers.late_results import LateTensor, read
from smdp.torch.pipelining.units.observation import tell
from smdp.torch.pipelining.units.side_effects import without_side_effects
from smdp.torch.pipelining.units.unit_call import Unit, under
from smdp.torch.recompute.activation_checkpoints import refuse_reentrant


class EndOfForward(BaseException):
    """This rank has nothing left to do in the model's forward."""


class Interpreter(TorchFunctionMode):
    """One microbatch's way through the program.

    Args:
        plan: Filled, where it is not complete; otherwise followed.
        context: Transfers and suspension.
        ghosts: Runs operations on placeholders.
        stream: Random numbers of the microbatch.
        end: Number of operations after which this rank has no part in the model's forward.
    """

    def __init__(
        self, plan: Plan, context: ExecutionContext, ghosts: Ghosts, stream: RandomStream, end: int
    ) -> None:
        super().__init__()
        self.stage = 0
        self.place = 0
        self.is_recording = not plan.is_complete
        self.is_in_model = False
        self.is_detour = False
        self._plan = plan
        self._context = context
        self._ghosts = ghosts
        self._stream = stream
        self._end = end
        self._own = context.own
        self._modes: Sequence[Any] = ()
        self._aliases = Aliases()
        self._births = Births()
        self._weight_writes = WeightWrites()
        self._renewed: dict[int, tuple[Tensor, Tensor]] = {}
        self._calls: dict[str, int] = {}
        self._last_unit = ""
        self._since_unit = 0
        self._has_part = True
        self._entered = -1

    def enter_model(self) -> None:
        """Begin with the model's forward."""
        self.is_in_model = True

    def leave_model(self, call: ModelCall | None) -> ModelCall:
        """Go on with the code around the model, also where its forward was not followed to its end.

        Args:
            call: As recorded; None while recording.
        """
        self.is_in_model = False
        if call is None:
            return ModelCall(None, self.place, (self.stage, self._last_unit, self._since_unit))
        self.place = call.end
        self.stage, self._last_unit, self._since_unit = call.at
        return call

    def renewed(self, tensor: Tensor) -> Tensor:
        """Give what has become of a tensor by operations that changed it in place."""
        while (found := self._renewed.get(id(tensor))) is not None:
            tensor = found[1]
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out one function of torch."""
        kwargs = kwargs or {}
        if LateTensor in types:
            args, kwargs = read((args, kwargs))
        if self._renewed:
            args, kwargs = map_tensors(self.renewed, (args, kwargs))
        if func in METADATA:
            return func(*args, **kwargs)
        name = name_of(func)
        is_owned = False
        for tensor in tensors_in((args, kwargs)):
            if value_of(tensor) is not None or weight_of(tensor) is not None:
                is_owned = True
            elif type(tensor) is FakeTensor:
                raise ValueError(kept_text(name, self._foreign_units(), tensor))
            else:
                self._births.check(tensor)
        if not is_owned:
            if name in DRAWING:
                self._since_unit += 1
                self._stream.start(f"{self._last_unit}+{self._since_unit} {name}")
            if self.is_recording and is_in_place(name) and args and isinstance(args[0], Tensor):
                # Ranks of earlier stages end their forward before they get here.
                mark_writer(args[0], self.stage)
            result = func(*args, **kwargs)
            self._births.note(result, (args, kwargs))
            return result
        self._since_unit += 1
        if name in ("backward", "register_hook"):
            raise RuntimeError(misplaced_text(name, self._context.wording))
        text = f"{self._last_unit}+{self._since_unit} {name}"
        if name in READS or self._writes_outside(name, args, kwargs):
            return self._read(func, args, kwargs, text)
        return self._operation(func, Kind.GLUE, args, kwargs, text, func)

    def _writes_outside(self, name: str, args: Any, kwargs: Any) -> bool:
        """Tell whether the code around the model writes to a tensor that all ranks have, and go on having.

        All of them do it then, with the values of stages as the host would read them.
        """
        target = None if self.is_in_model else self._births.writes_outside(name, args, kwargs)
        if target is None:
            return False
        if has_gradient((args, kwargs)):
            raise ValueError(outliving_text(name, target))
        return True

    def call_unit(self, unit: Unit, args: Any, kwargs: Any, modes: Sequence[Any]) -> Any:
        """Carry out one call of a unit; its own forward runs under the modes that are around the call."""
        args, kwargs = read((args, kwargs))
        if self._renewed:
            args, kwargs = map_tensors(self.renewed, (args, kwargs))
        self._modes = modes
        call = self._calls.get(unit.name, 0)
        self._calls[unit.name] = call + 1
        stage = unit.stage_of(call, self._context.wording)
        if self.is_recording:
            refuse_reentrant(unit.name)
        if stage < self.stage:
            raise ValueError(
                f"[smdp] module {unit.name!r} of stage {stage} runs after {self._last_unit!r} of stage"
                f" {self.stage}, but values only flow to later stages. {self._context.wording.traced}, so"
                " that the split follows the order in which modules run."
            )
        self.stage = stage
        if stage != self._entered and stage in self._own:
            self._context.enter(stage)
            self._entered = stage
        self._last_unit = unit.name if call == 0 else f"{unit.name}#{call + 1}"
        self._since_unit = 0
        original = under(modes)(unit.original) if modes else unit.original
        return self._operation(unit, Kind.UNIT, args, kwargs, self._last_unit, original)

    def _operation(
        self, function: Any, kind: Kind, args: Any, kwargs: Any, name: str, call: Callable[..., Any]
    ) -> Any:
        if self.is_recording:
            return self._record(function, kind, args, kwargs, name, call)
        operation = self._next(function, kind, name)
        if operation is None:
            return self._record(function, kind, args, kwargs, name, call)
        if operation.stage not in self._own:
            return self._placeholders(operation, args, kwargs)
        return self._keep(operation, self._compute(operation, args, kwargs, call))

    def _next(self, function: Any, kind: Kind, name: str) -> Operation | None:
        """Give the operation that the plan has here; None once the loss function goes another way."""
        if self.is_in_model and self.place >= self._end:
            raise EndOfForward
        operations = self._plan.operations
        operation = operations[self.place] if self.place < len(operations) else None
        if operation is None or operation.kind is not kind or operation.function != function:
            if self.is_in_model:
                planned = "its end" if operation is None else operation.name
                raise RuntimeError(
                    f"[smdp] the model's forward does {name} where it did {planned} in the first microbatch"
                    " of these shapes. Its path may depend on shapes and options, not on a microbatch's"
                    " values: the stages agree on transfers beforehand."
                )
            self.is_recording = self.is_detour = True
            self._plan = Plan(operations[: self.place], list(self._plan.values))
            return None
        self.place += 1
        return operation

    def _record(
        self, function: Any, kind: Kind, args: Any, kwargs: Any, name: str, call: Callable[..., Any]
    ) -> Any:
        stage = self.stage
        for tensor in tensors_in((args, kwargs)):
            self._connect(tensor, stage, name)
        is_mine = stage in self._own
        if self._has_part and not is_mine and self.is_in_model:
            self._context.watch()
        self._has_part = is_mine
        operation = Operation(function, kind, stage, None, False, name)
        computed: Computed | None = None
        try:
            if isinstance(function, Unit):
                # Before it computes: what the forward does to its module must happen once.
                with without_side_effects(function.module, but_placeholders=not is_mine):
                    predicted = self._ghosts.run_unit(function, args, kwargs, self._modes)
            else:
                predicted = self._ghosts.run(function, args, kwargs)
        except Unpredictable as error:
            if not isinstance(function, Unit):
                raise ValueError(unpredictable_text(name, error, is_in_model=self.is_in_model)) from error
            operation.draws = True
            computed = self._compute(operation, args, kwargs, call) if is_mine else None
            real = None if computed is None else (computed.result, computed.observed)
            predicted = Prediction(*self._context.describe(function, stage, real))
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
        self._plan.operations.append(operation)
        self.place += 1
        if not is_mine:
            return self._placeholders(operation, args, kwargs)
        return self._keep(operation, computed or self._compute(operation, args, kwargs, call))

    def _valued(self, operation: Operation, predicted: Prediction) -> Any:
        """Give each placeholder a value; one for each object."""
        values: dict[int, Value] = {}

        def valued(ghost: Tensor) -> Tensor:
            if id(ghost) not in values:
                values[id(ghost)] = Value(len(self._plan.values), operation.stage, ghost)
                self._plan.values.append(values[id(ghost)])
                mark(ghost, values[id(ghost)])
            operation.values.append(values[id(ghost)])
            return ghost

        return map_tensors(valued, (predicted.result, predicted.observed, predicted.changed))

    def _placeholders(self, operation: Operation, args: Any, kwargs: Any) -> Any:
        """Give what an operation of another rank gives, also to hooks inside it."""
        if isinstance(operation.function, Unit):
            for name, output in operation.observed:
                tell(operation.function.module.get_submodule(name), output)
        if not operation.changes and not operation.same:
            return operation.result
        inputs = leaves_in((args, kwargs))
        self._renew(operation, inputs, operation.changed)
        return _with_inputs(operation, operation.result, inputs)

    def _renew(self, operation: Operation, inputs: list[Tensor], changed: Sequence[Tensor]) -> None:
        """Let the program's names for what was changed in place stand for what it is now."""
        for place, tensor in zip(operation.changes, changed, strict=True):
            if not isinstance(inputs[place], Tensor):
                continue  # it was there in the first microbatch
            if value_of(inputs[place]) is None:
                mark_writer(inputs[place], operation.stage)
            if inputs[place] is not tensor:
                self._renewed[id(inputs[place])] = inputs[place], tensor

    def _connect(self, tensor: Tensor, stage: int, name: str) -> None:
        weight = weight_of(tensor)
        if weight is None and not self.is_in_model and (strange := parameter_behind(tensor)) is not None:
            raise ValueError(strange_weight_text(name, strange))
        if weight is not None and stage not in weight.stages:
            raise ValueError(
                foreign_weight_text(
                    name, stage, weight.name, self._context.wording, is_in_model=self.is_in_model
                )
            )
        value = value_of(tensor)
        if value is not None:
            self._aliases.check(value, name)
        if value is None or value.stage == stage or stage in value.consumers:
            return
        if self.is_detour:
            raise RuntimeError(
                "[smdp] the code around the model takes another path than in the first microbatch, and"
                f" {name} needs {value.text()} of stage {value.stage} on stage {stage}, which was not"
                " agreed on."
            )
        self._plan.connect(value, stage)
        if value.stage in self._own and stage not in self._own:
            self._context.send(value, tensor, stage)

    def _compute(self, operation: Operation, args: Any, kwargs: Any, call: Callable[..., Any]) -> Computed:
        is_recording = self.is_recording
        return compute(operation, args, kwargs, call, self._context, self._stream, is_recording=is_recording)

    def _keep(self, operation: Operation, real: Computed) -> Any:
        """Note whose the tensors of a result are."""
        if len(real.tensors) != len(operation.values):
            raise RuntimeError(
                f"[smdp] {operation.name} gave {len(real.tensors)} tensors, other ranks expect"
                f" {len(operation.values)}"
            )
        if operation.changes:
            self._renew(operation, real.inputs, real.changed)
        given = {place for place, _ in operation.same} if operation.same else ()
        for place, (tensor, value) in enumerate(zip(real.tensors, operation.values, strict=True)):
            if type(tensor) is FakeTensor:
                raise ValueError(kept_text(operation.name, self._foreign_units()))
            if tensor.shape != value.shape or tensor.dtype != value.dtype:
                raise RuntimeError(
                    f"[smdp] {operation.name} gave {str(tensor.dtype).removeprefix('torch.')}"
                    f"{list(tensor.shape)}, other ranks expect {value.text()}: its shape depends on values,"
                    " and cannot cross a stage boundary."
                )
            if place in given:
                continue
            mark(tensor, value)
            if value.consumers or (self.is_recording and not self.is_detour):
                self._context.export(value, tensor)
            if value.is_handed_round and self.is_in_model:
                # Where this rank ends the model's forward early, the model returns placeholders only.
                self._context.note_returned(value, tensor)
        return _with_inputs(operation, real.result, real.inputs)

    def _read(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        if self.is_recording:
            self._plan.operations.append(Operation(func, Kind.READ, self.stage, None, False, name))
            self._has_part = True
            self.place += 1
        elif self._next(func, Kind.READ, name) is None:
            return self._read(func, args, kwargs, name)

        def fetched(tensor: Tensor) -> Tensor:
            value = value_of(tensor)
            return tensor if value is None else self._context.fetch(value, tensor)

        args, kwargs = map_tensors(fetched, (args, kwargs))
        result = func(*args, **kwargs)
        self._births.note(result, (args, kwargs))
        return result

    def _foreign_units(self) -> list[Unit]:
        """Give the units of other ranks that have run."""
        found = {
            operation.function: None
            for operation in self._plan.operations
            if isinstance(operation.function, Unit) and operation.stage not in self._own
        }
        return list(found)


def _with_inputs(operation: Operation, result: Any, inputs: list[Tensor]) -> Any:
    """Give inputs themselves where the operation gives them: they stay whose they are."""
    if not operation.same:
        return result
    same = dict(operation.same)
    place = -1

    def chosen(tensor: Tensor) -> Tensor:
        nonlocal place
        place += 1
        return inputs[same[place]] if place in same else tensor

    return map_tensors(chosen, result)
