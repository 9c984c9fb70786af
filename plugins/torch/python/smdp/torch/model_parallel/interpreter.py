"""Ghost execution: the model's own code runs on every rank, each operation is carried out by one.

Inside the mode every function of torch passes through here. What stems from the batch and constants alone
runs everywhere. What touches a stage's value runs on the stage where the program is, and is a placeholder on
other ranks. A value of an earlier stage is sent where the program consumes it: all ranks meet that point, and
know whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from smdp.torch.model_parallel.activation_checkpoints import (
    checkpointed,
    is_checkpointed,
    outside_checkpoints,
    refuse_reentrant,
)
from smdp.torch.model_parallel.aliases import Aliases
from smdp.torch.model_parallel.containers import leaves_in, map_leaves, map_tensors, tensors_in
from smdp.torch.model_parallel.functions import KEEPS_STATISTICS, METADATA, READS, is_in_place, name_of
from smdp.torch.model_parallel.ghosts import Ghosts, Prediction, Unpredictable
from smdp.torch.model_parallel.late_results import LateTensor, read
from smdp.torch.model_parallel.observation import Observer, observed_modules, tell
from smdp.torch.model_parallel.outside_tensors import Births, has_gradient, parameter_behind
from smdp.torch.model_parallel.plan import Kind, ModelCall, Operation, Plan
from smdp.torch.model_parallel.random_streams import DRAWING, RandomStream
from smdp.torch.model_parallel.refusals import (
    check_gives_inputs,
    foreign_weight_text,
    kept_text,
    misplaced_text,
    naming,
    outliving_text,
    strange_weight_text,
    unpredictable_text,
)
from smdp.torch.model_parallel.side_effects import without_side_effects
from smdp.torch.model_parallel.surroundings import Surroundings
from smdp.torch.model_parallel.unit_call import Unit
from smdp.torch.model_parallel.values import Value, mark, mark_writer, value_of, weight_of
from smdp.torch.model_parallel.weight_writes import WeightWrites


class EndOfForward(BaseException):
    """This rank has nothing left to do in the model's forward."""


class Interpreter(TorchFunctionMode):
    """One microbatch's way through the program.

    Args:
        plan: Filled, where it is not complete; otherwise followed.
        surroundings: Transfers and suspension.
        ghosts: Runs operations on placeholders.
        stream: Random numbers of the microbatch.
        end: Number of operations after which this rank has no part in the model's forward.
    """

    def __init__(
        self, plan: Plan, surroundings: Surroundings, ghosts: Ghosts, stream: RandomStream, end: int
    ) -> None:
        super().__init__()
        self.stage = 0
        self.place = 0
        self.is_recording = not plan.is_complete
        self.is_in_model = False
        self.is_detour = False
        self.exports: dict[int, Tensor | GradientEdge | None] = {}
        self.returned: dict[int, Tensor] = {}
        self._plan = plan
        self._around = surroundings
        self._ghosts = ghosts
        self._stream = stream
        self._end = end
        self._aliases = Aliases()
        self._births = Births()
        self._weight_writes = WeightWrites()
        self._renewed: dict[int, tuple[Tensor, Tensor]] = {}
        self._calls: dict[str, int] = {}
        self._last_unit = ""
        self._since_unit = 0
        self._has_part = True

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
        """Carry out one function of torch, or one call of a unit."""
        kwargs = kwargs or {}
        if LateTensor in types or isinstance(func, Unit):
            args, kwargs = read((args, kwargs))
        if self._renewed:
            args, kwargs = map_tensors(self.renewed, (args, kwargs))
        if isinstance(func, Unit):
            return self._unit(func, args, kwargs)
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
            raise RuntimeError(misplaced_text(name))
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

    def _unit(self, unit: Unit, args: Any, kwargs: Any) -> Any:
        call = self._calls.get(unit.name, 0)
        self._calls[unit.name] = call + 1
        stage = unit.stage_of(call)
        if self.is_recording:
            refuse_reentrant(unit.name)
        if stage < self.stage:
            raise ValueError(
                f"[smdp] module {unit.name!r} of stage {stage} runs after {self._last_unit!r} of stage"
                f" {self.stage}, but values only flow to later stages. Give pipeline() example_inputs, so"
                " that the split follows the order in which modules run."
            )
        if stage > self.stage:
            self.stage = stage
        if self._around.is_mine(stage):
            self._around.enter(stage)
        self._last_unit = unit.name if call == 0 else f"{unit.name}#{call + 1}"
        self._since_unit = 0
        return self._operation(unit, Kind.UNIT, args, kwargs, self._last_unit, unit.original)

    def _operation(
        self, function: Any, kind: Kind, args: Any, kwargs: Any, name: str, call: Callable[..., Any]
    ) -> Any:
        if self.is_recording:
            return self._record(function, kind, args, kwargs, name, call)
        operation = self._next(function, kind, name)
        if operation is None:
            return self._record(function, kind, args, kwargs, name, call)
        if not self._around.is_mine(operation.stage):
            return self._placeholders(operation, args, kwargs)
        return self._keep(operation, self._compute(operation, args, kwargs, call), args, kwargs)

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
        is_mine = self._around.is_mine(stage)
        if self._has_part and not is_mine and self.is_in_model:
            self._around.watch()
        self._has_part = is_mine
        operation = Operation(function, kind, stage, None, False, name)
        computed: Any = None
        try:
            if isinstance(function, Unit):
                # Before it computes: what the forward does to its module must happen once.
                with without_side_effects(function.module, but_placeholders=not is_mine):
                    predicted = self._ghosts.run_unit(function, args, kwargs)
            else:
                predicted = self._ghosts.run(function, args, kwargs)
        except Unpredictable as error:
            if not isinstance(function, Unit):
                raise ValueError(unpredictable_text(name, error, is_in_model=self.is_in_model)) from error
            operation.draws = True
            computed = self._compute(operation, args, kwargs, call) if is_mine else None
            real = None if computed is None else computed[:2]
            predicted = Prediction(*self._around.describe(function, real))
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
        return self._keep(operation, computed or self._compute(operation, args, kwargs, call), args, kwargs)

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
            raise ValueError(foreign_weight_text(name, stage, weight.name, is_in_model=self.is_in_model))
        value = value_of(tensor)
        if value is not None:
            self._aliases.check(value, name)
        if value is None or value.stage == stage or stage in value.consumers:
            return
        if self.is_detour:
            raise RuntimeError(
                f"[smdp] the loss function takes another path than in the first microbatch, and {name} needs"
                f" {value.text()} of stage {value.stage} on stage {stage}, which was not agreed on."
            )
        self._plan.connect(value, stage)
        if self._around.is_mine(value.stage) and not self._around.is_mine(stage):
            self._around.send(value, tensor, stage)

    def _compute(
        self, operation: Operation, args: Any, kwargs: Any, call: Callable[..., Any]
    ) -> tuple[Any, Any, Any]:
        """Give the result, what modules with hooks inside gave, and what inputs have become."""
        given = args, kwargs
        local = self._localized(given, operation)
        args, kwargs = local
        if operation.draws or operation.kind is Kind.UNIT:
            self._stream.start(operation.name)
        observed: list[tuple[str, Any]] = []
        around: AbstractContextManager[None] = self._around.computing(operation.stage)
        if is_checkpointed():
            around = outside_checkpoints()
            call = checkpointed(call) if operation.kind is Kind.UNIT else call
        with naming(operation), around:
            # Observers cost more than a look: they are set up where the recording has seen, or sees, hooks.
            if not isinstance(operation.function, Unit) or not (operation.observed or self.is_recording):
                result = call(*args, **kwargs)
            else:
                with Observer(observed_modules(operation.function.module), is_silent=False) as observer:
                    result = call(*args, **kwargs)
                observed = observer.outputs
        if operation.same:
            check_gives_inputs(operation, result, local)
        return self._apart(operation, (result, observed), given, local)

    def _localized(self, tree: Any, operation: Operation) -> Any:
        place = -1

        def localized(leaf: Any) -> Any:
            nonlocal place
            place += 1
            value = value_of(leaf) if isinstance(leaf, Tensor) else None
            if value is None or value.stage == operation.stage:
                return leaf
            copy = self._around.bring(value, operation.stage)
            # The other ranks' copies stay as they are, and the copy's gradient is that of its first contents.
            return copy.clone() if place in operation.changes else copy

        return map_leaves(localized, tree)

    def _apart(
        self, operation: Operation, results: tuple[Any, Any], given: Any, local: Any
    ) -> tuple[Any, Any, Any]:
        """Give as objects of their own what is known already: those stay whose they are.

        An operation may give one of its inputs, a module something that it keeps.
        """
        inputs = leaves_in(given) if operation.changes else []
        locals_ = leaves_in(local)
        own: dict[int, Tensor] = {}
        changes = [place for place in operation.changes if isinstance(locals_[place], Tensor)]
        for place in changes:
            tensor = locals_[place]
            is_everybodys = value_of(inputs[place]) is None
            own[id(tensor)] = tensor.view_as(tensor) if is_everybodys else tensor
        known = {id(tensor) for tensor in locals_}
        is_unit = operation.kind is Kind.UNIT

        def apart(tensor: Tensor) -> Tensor:
            if id(tensor) not in own:
                may_be_kept = is_unit and tensor.grad_fn is None
                is_known = id(tensor) in known or may_be_kept or value_of(tensor) or weight_of(tensor)
                own[id(tensor)] = tensor.view_as(tensor) if is_known else tensor
            return own[id(tensor)]

        changed = tuple(locals_[place] for place in operation.changes)
        result, observed, changed = map_tensors(apart, (*results, changed))
        self._renew(operation, inputs, changed)
        return result, observed, changed

    def _keep(self, operation: Operation, real: tuple[Any, Any, Any], args: Any, kwargs: Any) -> Any:
        """Note whose the tensors of a result are."""
        tensors = tensors_in(real)
        if len(tensors) != len(operation.values):
            raise RuntimeError(
                f"[smdp] {operation.name} gave {len(tensors)} tensors, other ranks expect"
                f" {len(operation.values)}"
            )
        given = {place for place, _ in operation.same}
        for place, (tensor, value) in enumerate(zip(tensors, operation.values, strict=True)):
            if type(tensor) is FakeTensor:
                raise ValueError(kept_text(operation.name, self._foreign_units()))
            if tensor.shape != value.ghost.shape or tensor.dtype != value.ghost.dtype:
                raise RuntimeError(
                    f"[smdp] {operation.name} gave {str(tensor.dtype).removeprefix('torch.')}"
                    f"{list(tensor.shape)}, other ranks expect {value.text()}: its shape depends on values,"
                    " and cannot cross a stage boundary."
                )
            if place in given:
                continue
            mark(tensor, value)
            if value.consumers or (self.is_recording and not self.is_detour):
                self.exports[value.index] = tensor
            if value.is_handed_round and self.is_in_model:
                # Where this rank ends the model's forward early, the model returns placeholders only.
                self.returned[value.index] = tensor
        if not given:
            return real[0]
        return _with_inputs(operation, real[0], leaves_in((args, kwargs)))

    def _read(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        if self.is_recording:
            self._plan.operations.append(Operation(func, Kind.READ, self.stage, None, False, name))
            self._has_part = True
            self.place += 1
        elif self._next(func, Kind.READ, name) is None:
            return self._read(func, args, kwargs, name)

        def fetched(tensor: Tensor) -> Tensor:
            value = value_of(tensor)
            return tensor if value is None else self._around.fetch(value, tensor)

        args, kwargs = map_tensors(fetched, (args, kwargs))
        result = func(*args, **kwargs)
        self._births.note(result, (args, kwargs))
        return result

    def _foreign_units(self) -> list[Unit]:
        """Give the units of other ranks that have run."""
        found = {
            operation.function: None
            for operation in self._plan.operations
            if isinstance(operation.function, Unit) and not self._around.is_mine(operation.stage)
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
