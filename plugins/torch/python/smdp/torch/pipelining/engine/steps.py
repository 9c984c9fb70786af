"""The steps of a pipelined model: the first step of an input signature is recorded, later ones replay it."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp import _core
from smdp import pipeline as schedules
from smdp._errors import SmdpError
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.engine.coroutines import CoroutinePool
from smdp.torch.pipelining.engine.executor import Executor, Timed
from smdp.torch.pipelining.engine.handlers import Handlers
from smdp.torch.pipelining.engine.lockstep import Lockstep
from smdp.torch.pipelining.engine.lowering import lower
from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.engine.offload_actions import OffloadActions
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.recordings import Recording, Recordings
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.engine.timeline import Timeline
from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.gradients.gradient_reduction import GradientReduction
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.tensors.modes import Modes
from smdp.torch.pipelining.tensors.random_streams import KeptState
from smdp.torch.pipelining.transfers.late_results import read
from smdp.torch.pipelining.transfers.transfers import Channel, Lane
from smdp.torch.pipelining.units.splitting import Split
from smdp.torch.pipelining.units.wording import Wording

MicrobatchProgram = Callable[[Any], Any]


class Tables(NamedTuple):
    """The schedules for one number of microbatches, with computations only."""

    training: schedules.Schedule
    evaluation: schedules.Schedule


class Steps:
    """The steps of one pipelined model.

    Args:
        model: The whole model.
        split: The assignment of modules to stages.
        tables: Returns the schedules for a number of microbatches.
        rank_of: The rank, within the pipeline, of each virtual stage.
        mesh: The ranks and groups of the job.
        replicas: Averages gradients over replicas.
        tied: Adds the gradients of tied weights.
        handlers: The handlers that perform the actions of a schedule.
        device: The device of this rank.
        seed: Seed for dropout.
        postpones: Whether weight gradients are computed separately from input gradients.
        wording: Names of the API that the user called, for messages.

    Attributes:
        handlers: The handlers that perform the actions of a schedule.
        number: Number of steps so far.
        timeline: The actions of the last step, with their times.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        tables: Callable[[int], Tables],
        rank_of: list[int],
        mesh: ParallelMesh,
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
        in_units = {each for name in split.stages for each in model.get_submodule(name).modules()}
        self._glue = [module for module in model.modules() if module not in in_units]
        self._recordings = Recordings(model, self._glue, is_teller=mesh.rank == 0)
        self._split = split
        self._tables = tables
        self._rank_of = rank_of
        self._mesh = mesh
        self._replicas = replicas
        self._tied = tied
        self.handlers = handlers
        self._device = device
        self._seed = seed
        self._postpones = postpones
        self._wording = wording
        self._offload = next((each for each in handlers if isinstance(each, OffloadActions)), None)
        self._own = frozenset(s for s, rank in enumerate(rank_of) if rank == mesh.stage_rank)
        self._ghosts = Ghosts(device)
        self._coroutines = CoroutinePool()
        weakref.finalize(self, self._coroutines.close)
        self._writes_late = False
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
        """Runs one step.

        Args:
            program: The function called with each microbatch.
            parts: The microbatches.
            identity: The user's function that the program runs. Functions with one code object count as one.
            is_training: Whether gradients are computed. A program that marks no loss runs without a backward.
            scale: Returns the tensor from which backward starts, given a microbatch's loss.
            wants_mean: Whether every rank gets the mean loss.

        Returns:
            The mean loss, or None if it is not requested, and the list of the program's results.
        """
        if self._error is not None:
            raise RuntimeError(
                f"[smdp] an earlier step of this pipeline failed ({self._error}); restart the job from a"
                " checkpoint"
            ) from self._error
        parts = [read(part) for part in parts]
        modes = Modes()
        signature = self._recordings.signature(parts, identity, modes, is_training=is_training)
        prepared = self._recordings.find(signature)
        step = Step(
            plan=prepared.plan,
            program=program,
            rank_of=self._rank_of,
            rank=self._mesh.stage_rank,
            own=self._own,
            values=Channel(self._mesh.step_group("pp"), Lane.VALUES),
            reads=Channel(self._mesh.step_group("pp"), Lane.READS),
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
            first=self._mesh.replica * len(parts),
            wording=self._wording,
            saved=None if self._offload is None or not is_training else self._offload.new_step(parts),
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
            # Otherwise no stage has run: all ranks are in the user's code and raise the same error.
            raise
        self._recordings.keep(signature, prepared)
        return mean, [microbatch.result for microbatch in microbatches]

    def _follow(
        self,
        step: Step,
        prepared: Recording,
        microbatches: list[Microbatch],
        parts: Sequence[Any],
        scale: Callable[[Tensor], Tensor],
    ) -> None:
        is_new = not prepared.plan.is_complete
        if is_new:
            microbatches.append(Microbatch(step, 0, parts[0], prepared.end))
            same = microbatches[0].record()
            if not self._recordings:
                same.check(prepared.plan)
            self._prepare(prepared, step)
        for index in range(len(microbatches), len(parts)):
            microbatches.append(Microbatch(step, index, parts[index], prepared.end))
        executor = Executor(prepared.row, self.handlers)
        if prepared.has_backward:
            self._replicas.prepare()
            self._tied.put_aside()
        executor.execute(
            StepRun(
                step,
                microbatches,
                is_recorded=is_new,
                scale=scale,
                is_in_lockstep=prepared.is_in_lockstep,
            )
        )
        if is_new and self._recordings:
            # Later signatures do not wait for other ranks: only a model that branches on them would differ.
            same.check(prepared.plan)
        self._replicas.finish()
        self.timeline = executor.timeline
        if prepared.timeline is not None and not is_new:
            prepared.timeline.write(executor.timeline, time.monotonic_ns())

    def _prepare(self, prepared: Recording, step: Step) -> None:
        """Lowers the schedule, now that the recording shows what the step does."""
        prepared.has_backward = step.needs_grad and prepared.plan.loss_stage >= 0
        tables = self._tables(step.microbatches)
        schedule = tables.training if prepared.has_backward else tables.evaluation
        if schedule.forward_only and prepared.has_backward:
            raise ValueError(
                f"[smdp] schedule {schedule.name!r} has no backward; run a step without gradients or use"
                " another schedule"
            )
        rank = self._mesh.stage_rank
        table, prepared.row = lower(
            schedule, self.handlers, prepared.plan, rank, has_backward=prepared.has_backward
        )
        self.handlers.check(prepared.row)
        prepared.is_in_lockstep = any(action.kind in Lockstep.kinds for action in prepared.row)
        if prepared.has_backward and _core.trace_is_on():
            prepared.timeline = Timeline(table, self._split.partition, rank)
        # Never reset, because a later recording may happen to find a number unchanged.
        self._writes_late |= prepared.plan.writes_late
        if not self._writes_late and all(call.output is not None for call in prepared.plan.calls):
            prepared.end = prepared.plan.last_needed(sorted(self._own))

    def _mean_loss(self, microbatches: list[Microbatch], step: Step) -> Tensor:
        if microbatches[0].loss.stage < 0:
            raise ValueError("[smdp] the program of a step with mean_loss=True did not call backward(loss)")
        owner = step.rank_of[microbatches[0].loss.stage]
        # The mean of bf16 losses would have only three significant digits in bf16.
        dtype = torch.promote_types(microbatches[0].loss.dtype, torch.float32)
        if owner == step.rank:
            losses = [m.loss.value for m in microbatches if m.loss.value is not None]
            mean = torch.stack(losses).mean(dtype=dtype)
        else:
            mean = torch.zeros((), dtype=dtype, device=self._device)
        if len(set(step.rank_of)) > 1:
            dist.broadcast(mean, group=self._mesh.step_group("pp"), group_src=owner)
        return mean

    def _fail(self, error: BaseException, microbatches: list[Microbatch]) -> None:
        self._error = error
        # Aborting comes first, so that ranks which wait for this one are released.
        notes = " ".join(getattr(error, "__notes__", []))
        reason = f"{type(error).__name__}: {error} {notes}".rstrip()
        self._mesh.abort(reason)
        with contextlib.suppress(Exception):
            self._replicas.abort(reason)
        for microbatch in microbatches:
            microbatch.control.abandon()
