"""Ghost execution: every rank runs the model's own code, and one rank computes each operation.

Within the mode, every torch function passes through the interpreter. A function that depends only on the
batch and constants runs on every rank. A function that uses a stage's value runs on the stage that the
program has reached, and returns a placeholder on other ranks. A value of an earlier stage is sent at the
point where the program uses it: every rank reaches this point and knows which rank has the value.

This file classifies the calls. `recorder.py` adds operations to a plan, `replayer.py` follows a plan, and
`execution.py` executes planned operations.

Collectives inside units, as in tensor parallelism, must be operators of `torch.library` with a fake kernel,
and never calls of `torch.distributed`. Ranks of other stages run a unit on placeholders. The fake kernel then
returns the shape of the result without communication, whereas a call of `torch.distributed` would wait for
ranks that compute another stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.interpreter.execution import Execution
from smdp.torch.pipelining.interpreter.execution_context import ExecutionContext
from smdp.torch.pipelining.interpreter.outside_tensors import Births, has_gradient
from smdp.torch.pipelining.interpreter.plan import Kind, Plan
from smdp.torch.pipelining.interpreter.position import Position
from smdp.torch.pipelining.interpreter.recorder import Recorder
from smdp.torch.pipelining.interpreter.refusals import kept_text, misplaced_text, outliving_text
from smdp.torch.pipelining.interpreter.replayer import Replayer
from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in
from smdp.torch.pipelining.tensors.functions import METADATA, READS, is_in_place, name_of
from smdp.torch.pipelining.tensors.random_streams import DRAWING, RandomStream
from smdp.torch.pipelining.tensors.values import mark_writer, value_of, weight_of
from smdp.torch.pipelining.transfers.late_results import LateTensor, read
from smdp.torch.pipelining.units.unit_call import Unit, under
from smdp.torch.recompute.activation_checkpoints import refuse_reentrant


class Interpreter(TorchFunctionMode):
    """The execution of the program for one microbatch.

    Args:
        plan: The plan, which is recorded if it is not complete, and otherwise followed.
        context: Transfers values and suspends the program.
        ghosts: Runs operations on placeholders.
        stream: The random numbers of the microbatch.
        end: Number of operations after which this rank has no more work in the model's forward.

    Attributes:
        position: The position of the microbatch in the program.
    """

    def __init__(
        self, plan: Plan, context: ExecutionContext, ghosts: Ghosts, stream: RandomStream, end: int
    ) -> None:
        super().__init__()
        self.position = Position(plan, is_recording=not plan.is_complete)
        self._context = context
        self._own = context.own
        self._stream = stream
        self._execution = Execution(self.position, context, stream)
        self._recorder = Recorder(self.position, context, ghosts, self._execution)
        self._replayer = Replayer(self.position, end)
        self._births = Births()
        self._modes: Sequence[Any] = ()
        self._calls: dict[str, int] = {}
        self._entered = -1

    def renewed(self, tensor: Tensor) -> Tensor:
        """Returns the current form of a tensor that operations may have changed in place."""
        return self._execution.renewed(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one torch function."""
        kwargs = kwargs or {}
        if LateTensor in types:
            args, kwargs = read((args, kwargs))
        if self._execution.has_renewed:
            args, kwargs = map_tensors(self._execution.renewed, (args, kwargs))
        if func in METADATA:
            return func(*args, **kwargs)
        name = name_of(func)
        position = self.position
        is_owned = False
        for tensor in tensors_in((args, kwargs)):
            if value_of(tensor) is not None or weight_of(tensor) is not None:
                is_owned = True
            elif type(tensor) is FakeTensor:
                raise ValueError(kept_text(name, position.foreign_units(self._own), tensor))
            else:
                self._births.check(tensor)
        if not is_owned:
            return self._everywhere(func, args, kwargs, name)
        position.since_unit += 1
        if name in ("backward", "register_hook"):
            raise RuntimeError(misplaced_text(name, self._context.wording))
        text = f"{position.last_unit}+{position.since_unit} {name}"
        if name in READS or self._writes_outside(name, args, kwargs):
            return self._read(func, args, kwargs, text)
        return self._operation(func, Kind.GLUE, args, kwargs, text, func)

    def call_unit(self, unit: Unit, args: Any, kwargs: Any, modes: Sequence[Any]) -> Any:
        """Runs one call of a unit, whose own forward runs under the modes that surround the call."""
        args, kwargs = read((args, kwargs))
        if self._execution.has_renewed:
            args, kwargs = map_tensors(self._execution.renewed, (args, kwargs))
        self._modes = modes
        position = self.position
        call = self._calls.get(unit.name, 0)
        self._calls[unit.name] = call + 1
        stage = unit.stage_of(call, self._context.wording)
        if position.is_recording:
            refuse_reentrant(unit.name)
        if stage < position.stage:
            raise ValueError(
                f"[smdp] module {unit.name!r} of stage {stage} runs after {position.last_unit!r} of stage"
                f" {position.stage}, but values can flow only to later stages."
                f" {self._context.wording.traced}, so that the split follows the order in which modules run."
            )
        position.stage = stage
        if stage != self._entered and stage in self._own:
            self._context.enter(stage)
            self._entered = stage
        position.last_unit = unit.name if call == 0 else f"{unit.name}#{call + 1}"
        position.since_unit = 0
        original = under(modes)(unit.original) if modes else unit.original
        return self._operation(unit, Kind.UNIT, args, kwargs, position.last_unit, original)

    def _everywhere(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """Runs a function that depends only on the batch and constants, as every rank does."""
        position = self.position
        if name in DRAWING:
            position.since_unit += 1
            self._stream.start(f"{position.last_unit}+{position.since_unit} {name}")
        if position.is_recording and is_in_place(name) and args and isinstance(args[0], Tensor):
            # Ranks of earlier stages end their forward before this point.
            mark_writer(args[0], position.stage)
        result = func(*args, **kwargs)
        self._births.note(result, (args, kwargs))
        return result

    def _writes_outside(self, name: str, args: Any, kwargs: Any) -> bool:
        """Returns whether code around the model writes to a tensor that all ranks have and keep.

        If so, every rank performs the write, and values of stages are shared as for a host read.
        """
        target = None if self.position.is_in_model else self._births.writes_outside(name, args, kwargs)
        if target is None:
            return False
        if has_gradient((args, kwargs)):
            raise ValueError(outliving_text(name, target))
        return True

    def _operation(
        self, function: Any, kind: Kind, args: Any, kwargs: Any, name: str, call: Callable[..., Any]
    ) -> Any:
        """Runs an operation of the stage that the program has reached."""
        if not self.position.is_recording:
            operation = self._replayer.next(function, kind, name)
            if operation is not None:
                return self._execution.perform(operation, args, kwargs, call)
        return self._recorder.record(function, kind, args, kwargs, name, call, self._modes)

    def _read(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """Runs a host read on every rank; the values of stages are sent to all ranks."""
        if self.position.is_recording or self._replayer.next(func, Kind.READ, name) is None:
            self._recorder.record_read(func, name)

        def fetched(tensor: Tensor) -> Tensor:
            value = value_of(tensor)
            return tensor if value is None else self._context.fetch(value, tensor)

        args, kwargs = map_tensors(fetched, (args, kwargs))
        result = func(*args, **kwargs)
        self._births.note(result, (args, kwargs))
        return result
