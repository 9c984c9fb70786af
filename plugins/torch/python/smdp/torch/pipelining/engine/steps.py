"""The steps of a pipelined model: the first of an input signature is recorded, others follow its plan."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from smdp import _core
from smdp import pipeline as schedules
from smdp._errors import SmdpError
from smdp.torch.mesh.layout import Layout
from smdp.torch.pipelining.engine.actions import Action, read_row
from smdp.torch.pipelining.engine.coroutines import CoroutinePool
from smdp.torch.pipelining.engine.executor import Executor, Timed
from smdp.torch.pipelining.engine.handlers import Handlers
from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.engine.timeline import Timeline
from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.gradients.gradient_reduction import GradientReduction
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.containers import describe
from smdp.torch.pipelining.tensors.modes import Modes
from smdp.torch.pipelining.tensors.random_streams import KeptState
from smdp.torch.pipelining.transfers.late_results import read
from smdp.torch.pipelining.transfers.transfers import Channel
from smdp.torch.pipelining.units.splitting import Split
from smdp.torch.pipelining.units.wording import Wording

# Of ever new lengths of sequences only so many are remembered.
_MOST_PLANS = 256
# Steps in a row that had to be recorded, after which the log says why training is slow.
_MANY_RECORDINGS = 8

_log = logging.getLogger(__name__)

MicrobatchProgram = Callable[[Any], Any]


class Tables(NamedTuple):
    """Schedules for one number of microbatches, of computations only."""

    training: schedules.Schedule
    evaluation: schedules.Schedule


class Steps:
    """The steps of one pipelined model.

    Args:
        model: The whole model.
        split: Where it is cut.
        tables: Gives the schedules of steps of so many microbatches.
        rank_of: Rank, within the pipeline, of each virtual stage.
        layout: Ranks and groups.
        replicas: Averages gradients over replicas.
        tied: Adds those of tied weights.
        handlers: Of the actions of a schedule.
        device: Where this rank computes.
        seed: Of dropout.
        postpones: Weight gradients come apart from those of inputs.
        wording: Of the API that the user wrote.

    Attributes:
        handlers: Of the actions of a schedule.
        number: How many steps have run.
        timeline: Of the last one.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        tables: Callable[[int], Tables],
        rank_of: list[int],
        layout: Layout,
        replicas: GradientReduction,
        tied: TiedGradients,
        handlers: Handlers,
        *,
        device: torch.device,
        seed: int,
        postpones: bool,
        wording: Wording,
    ) -> None:
        self.number = 0
        self.timeline: list[Timed] = []
        self._model = model
        in_units = {each for name in split.stages for each in model.get_submodule(name).modules()}
        self._glue = [module for module in model.modules() if module not in in_units]
        self._split = split
        self._tables = tables
        self._rank_of = rank_of
        self._layout = layout
        self._replicas = replicas
        self._tied = tied
        self.handlers = handlers
        self._device = device
        self._seed = seed
        self._postpones = postpones
        self._wording = wording
        self._own = frozenset(s for s, rank in enumerate(rank_of) if rank == layout.stage_rank)
        self._ghosts = Ghosts(device)
        self._coroutines = CoroutinePool()
        weakref.finalize(self, self._coroutines.close)
        self._plans: dict[Any, _Prepared] = {}
        self._writes_late = False
        self._recordings = 0
        self._places = 0
        self._error: BaseException | None = None

    def run(
        self,
        program: MicrobatchProgram,
        parts: Sequence[Any],
        *,
        identity: object,
        is_training: bool,
        scale: Callable[[Tensor], Tensor],
        wants_mean: bool,
    ) -> tuple[Tensor | None, list[Any]]:
        """Run one step.

        Args:
            program: Called with each part.
            parts: The microbatches.
            identity: What calls the program as this one does: functions with one code are one.
            is_training: With gradients; a program that names no loss runs without a backward all the same.
            scale: Makes of a microbatch's loss what its backward begins with.
            wants_mean: Of the losses, on every rank.

        Returns:
            The mean loss, if wanted, and what the program gave for each part.
        """
        if self._error is not None:
            raise RuntimeError(
                f"[smdp] an earlier step of this pipeline failed ({self._error}); start again from a"
                " checkpoint"
            ) from self._error
        parts = [read(part) for part in parts]
        modes = Modes()
        key = self._key(parts, identity, modes, is_training)
        prepared = self._plans.get(key) or _Prepared(Plan())
        step = Step(
            plan=prepared.plan,
            program=program,
            rank_of=self._rank_of,
            rank=self._layout.stage_rank,
            own=self._own,
            values=Channel(self._layout.values),
            reads=Channel(self._layout.reads),
            ghosts=self._ghosts,
            coroutines=self._coroutines,
            modes=modes,
            glue=self._glue,
            needs_grad=is_training,
            postpones=is_training and self._postpones,
            seed=self._seed,
            number=self.number,
            microbatches=len(parts),
            first_place=self._places,
            first=self._layout.replica * len(parts),
            wording=self._wording,
        )
        self.number += 1
        self._places += len(parts)
        mean: Tensor | None = None
        microbatches: list[Microbatch] = []
        try:
            with KeptState():
                self._follow(step, prepared, microbatches, parts, scale)
                if wants_mean:
                    mean = self._mean_loss(microbatches, step)
        except BaseException as error:
            if prepared.plan.operations or step.has_begun or isinstance(error, SmdpError):
                self._fail(error, microbatches)
            # Otherwise no stage has done anything: all ranks are in the user's code, and find the same.
            raise
        self._note_recording(is_new=key not in self._plans)
        self._plans[key] = prepared
        if len(self._plans) > _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        return mean, [microbatch.result for microbatch in microbatches]

    def _follow(
        self,
        step: Step,
        prepared: _Prepared,
        microbatches: list[Microbatch],
        parts: Sequence[Any],
        scale: Callable[[Tensor], Tensor],
    ) -> None:
        is_new = not prepared.plan.is_complete
        if is_new:
            microbatches.append(Microbatch(step, 0, parts[0], prepared.end))
            same = microbatches[0].record()
            if not self._plans:
                same.check(prepared.plan)
            self._prepare(prepared, step)
        for index in range(len(microbatches), len(parts)):
            microbatches.append(Microbatch(step, index, parts[index], prepared.end))
        executor = Executor(prepared.row, self.handlers)
        if prepared.has_backward:
            self._replicas.prepare()
            self._tied.put_aside()
        executor.execute(StepRun(step, microbatches, is_recorded=is_new, scale=scale))
        if is_new and self._plans:
            # Later signatures wait for no other rank: only a model that branches on them differs.
            same.check(prepared.plan)
        self._replicas.finish()
        self.timeline = executor.timeline
        if prepared.timeline is not None and not is_new:
            prepared.timeline.write(executor.timeline, time.monotonic_ns())

    def _prepare(self, prepared: _Prepared, step: Step) -> None:
        """Add transfers to the schedule, for the edges that the recording has found, and prove it."""
        prepared.has_backward = step.needs_grad and prepared.plan.loss_stage >= 0
        tables = self._tables(step.microbatches)
        schedule = tables.training if prepared.has_backward else tables.evaluation
        if schedule.forward_only and prepared.has_backward:
            raise ValueError(
                f"[smdp] schedule {schedule.name!r} has no backward; allowed: a step without gradients, or"
                " another schedule"
            )
        lowered = schedule.lower(
            skip_edges=prepared.plan.skip_edges(),
            reduce_grad=prepared.has_backward,
            tied=self._split.tied() if prepared.has_backward else (),
        )
        schedules.verify(lowered)
        if prepared.has_backward and _core.trace_is_on():
            prepared.timeline = Timeline(lowered, self._split.partition, self._layout.stage_rank)
        prepared.row = self.handlers.lower(read_row(lowered.rows[self._layout.stage_rank]))
        # Once and for all: the next recording may find a number that happens to be as it was.
        self._writes_late |= prepared.plan.writes_late
        if not self._writes_late and all(call.output is not None for call in prepared.plan.calls):
            prepared.end = prepared.plan.last_needed(sorted(self._own))

    def _key(self, parts: Sequence[Any], identity: object, modes: Modes, is_training: bool) -> Any:
        return (
            len(parts),
            describe(parts[0]),
            is_training,
            tuple(module.training for module in self._model.modules()),
            modes.key(),
            code_of(identity),
            tuple(parameter.requires_grad for parameter in self._model.parameters()),
            tuple(_switches(module) for module in self._glue),
        )

    def _note_recording(self, *, is_new: bool) -> None:
        self._recordings = self._recordings + 1 if is_new else 0
        if self._recordings == _MANY_RECORDINGS and self._layout.rank == 0:
            _log.warning(
                "[smdp] each of the last %d steps got arguments of other shapes, or other numbers, and was"
                " recorded, which takes several times as long as a step; give a number that changes in every"
                " step as a tensor, torch.tensor(x), and pad sequences to a few lengths",
                _MANY_RECORDINGS,
            )

    def _mean_loss(self, microbatches: list[Microbatch], step: Step) -> Tensor:
        if microbatches[0].loss_stage < 0:
            raise ValueError("[smdp] the program of a step with a mean loss has called no backward(loss)")
        owner = step.rank_of[microbatches[0].loss_stage]
        # A mean of losses in bf16 would be good for three digits.
        dtype = torch.promote_types(microbatches[0].loss_dtype, torch.float32)
        if owner == step.rank:
            losses = [m.loss_value for m in microbatches if m.loss_value is not None]
            mean = torch.stack(losses).mean(dtype=dtype)
        else:
            mean = torch.zeros((), dtype=dtype, device=self._device)
        if len(set(step.rank_of)) > 1:
            dist.broadcast(mean, group=self._layout.values, group_src=owner)
        return mean

    def _fail(self, error: BaseException, microbatches: list[Microbatch]) -> None:
        self._error = error
        # First of all, so that what waits for others ends.
        notes = " ".join(getattr(error, "__notes__", []))
        self._layout.abort(f"{type(error).__name__}: {error} {notes}".rstrip())
        for microbatch in microbatches:
            microbatch.abandon()


def code_of(function: Any) -> object:
    """Give what is the same for a function that is made anew in every step, with all that it wraps."""
    found = []
    while function is not None:
        is_partial = isinstance(function, functools.partial)
        found.append(getattr(function, "__code__", type(function)))
        function = function.func if is_partial else getattr(function, "__wrapped__", None)
    return tuple(found)


def _switches(module: nn.Module) -> tuple[float | None, ...]:
    """Give which of its numbers are 0 or 1: dropout with 0 gives its input, with 1 it draws nothing."""
    # An integer counts something, unless it is nn.Dropout's p.
    kinds = (float, int) if isinstance(module, _DropoutNd) else (float,)
    numbers = [item for item in vars(module).values() if type(item) in kinds]
    return tuple(number if number in (0, 1) else None for number in numbers)


class _Prepared:
    """A plan with the row that executes it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.row: list[Action] = []
        self.timeline: Timeline | None = None
        self.end = 1 << 30
        self.has_backward = False
