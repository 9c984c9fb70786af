"""A model whose stages lie on several ranks, with the step that trains it."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.module import _IncompatibleKeys

from smdp import _core
from smdp import pipeline as schedules
from smdp._errors import SmdpError
from smdp.torch.model_parallel.actions import Action, read_row
from smdp.torch.model_parallel.containers import describe
from smdp.torch.model_parallel.executor import Executor, Timed
from smdp.torch.model_parallel.ghosts import Ghosts
from smdp.torch.model_parallel.layout import Layout
from smdp.torch.model_parallel.microbatch import Microbatch, Step
from smdp.torch.model_parallel.modes import Modes
from smdp.torch.model_parallel.plan import Plan
from smdp.torch.model_parallel.program import LossFunction, Program
from smdp.torch.model_parallel.random_streams import KeptState
from smdp.torch.model_parallel.replica_gradients import ReplicaGradients
from smdp.torch.model_parallel.slicing import cut
from smdp.torch.model_parallel.splitting import Split, keep_own, make_units
from smdp.torch.model_parallel.state import Entry, entries_of, select
from smdp.torch.model_parallel.suspension import Strands
from smdp.torch.model_parallel.tied_gradients import TiedGradients
from smdp.torch.model_parallel.timeline import Timeline
from smdp.torch.model_parallel.transfers import Channel
from smdp.torch.model_parallel.values import writer_of
from smdp.torch.model_parallel.weight_gradients import split_backward

# Of ever new lengths of sequences only so many are remembered.
_MOST_PLANS = 256

_log = logging.getLogger(__name__)

live: weakref.WeakSet[PipelinedModule] = weakref.WeakSet()


class PipelinedModule(nn.Module):
    """What `smdp.torch.pipeline()` gives: this rank's part of a model, and the steps of all ranks.

    Args:
        model: The whole model; its foreign parameters are given up.
        split: Where it is cut.
        schedule: Of the computations of a training step.
        evaluation: Of those of an evaluation step.
        layout: Ranks and groups.
        seed: Of dropout; the same on all ranks.
        is_compiled: Modules go through `torch.compile`.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        schedule: schedules.Schedule,
        evaluation: schedules.Schedule,
        layout: Layout,
        seed: int,
        *,
        is_compiled: bool = False,
    ) -> None:
        super().__init__()
        self.training = model.training
        self.split = split
        self.schedule = schedule
        self.layout = layout
        self.timeline: list[Timed] = []
        own = {stage for stage, rank in enumerate(schedule.rank_of) if rank == layout.stage_rank}
        self._own = own
        self._evaluation = evaluation
        keep_own(model, split.weights, own, weakref.ref(self))
        # Not a submodule: names of parameters and of the state dict stay those of the model.
        self.__dict__["module"] = model
        self.device = _device_of(model)
        self._postpones = any(action.kind == "W" for row in schedule.rows for action in read_row(row))
        # Compiled code gives both gradients at once.
        self._postpones &= not is_compiled
        if self._postpones:
            self._split_backward(model)
        self._units = make_units(model, split.stages)
        if is_compiled:
            for unit in self._units:
                unit.compile()
        self._program = Program(model)
        self._ghosts = Ghosts(self.device)
        self._strands = Strands()
        parameters = dict(self.named_parameters())
        self._replicas = ReplicaGradients(parameters, split.weights, own, layout)
        self._tied = TiedGradients(parameters, split, layout, schedule.rank_of)
        self._plans: dict[Any, _Prepared] = {}
        self._seed = seed
        self._steps = 0
        self._error: BaseException | None = None
        live.add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: one call cannot run a pipeline."""
        raise RuntimeError(
            "[smdp] a pipelined model is not called; use train_step(batch, loss_fn) or"
            " eval_step(batch, loss_fn)"
        )

    def train_step(
        self, batch: Any, loss_fn: LossFunction | None = None, *, scaler: torch.amp.GradScaler | None = None
    ) -> Any:
        """Run forward and backward of all microbatches; `.grad` then holds the mean over them.

        Args:
            batch: The batch of this replica, the same on every rank of its pipeline: a tensor, tuple or dict.
                Dimension 0 of its tensors is cut into microbatches. The model's forward gets what it takes.
            loss_fn: Called as loss_fn(output) or loss_fn(output, microbatch) on every rank; gives one number,
                or (number, anything). Default: the loss that the model returns.
            scaler: Multiplies the loss before backward; a smdp.torch.GradScaler.

        Returns:
            The mean loss over microbatches, a scalar tensor in fp32 or fp64, on every rank; where loss_fn
            gave something beside it, (mean loss, list of what it gave per microbatch), its tensors on every
            rank too.

        Raises:
            ValueError: Batch, model or loss cannot be executed so; nothing hangs on other ranks.
            smdp.SmdpError: A rank is gone; the message names it and what was awaited.
        """
        return self._run(batch, loss_fn, is_training=True, scaler=scaler)

    def eval_step(self, batch: Any, loss_fn: LossFunction | None = None) -> Any:
        """Run the forward only, without gradients; arguments and result as of train_step()."""
        return self._run(batch, loss_fn, is_training=False)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Give this rank's parameters under their names in the model."""
        for name, parameter in self.module.named_parameters(prefix, recurse, remove_duplicate):
            if not parameter.is_meta:
                yield name, parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Give the buffers of this rank's modules, and those between modules that it keeps up to date."""
        foreign = [
            f"{unit.name}." for unit in self._units if not self._own & set(self.split.stages[unit.name])
        ]
        for name, buffer in self.module.named_buffers(prefix, recurse, remove_duplicate):
            is_foreign = name.removeprefix(prefix).lstrip(".").startswith(tuple(foreign))
            writer = writer_of(buffer)
            if not is_foreign and (writer is None or writer in self._own):
                yield name, buffer

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Give this rank's parameters and buffers under their names in the model; tied ones have several."""
        found = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        for name, entry in self.entries().items():
            if not self.holds(entry):
                del found[prefix + name]
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy values into this rank's parameters and buffers.

        Args:
            state_dict: A rank's, or the whole model's, of which other ranks' entries are passed over.
            strict: Refuse one that lacks an entry of this rank, or holds what the model lacks.
            assign: Refused: parameters are final.

        Returns:
            Names that are missing, and names that the model lacks, as torch gives them.

        Raises:
            ValueError: See `strict`; or a shape differs. Nothing has been changed.
        """
        if assign:
            raise ValueError(
                "[smdp] load_state_dict(assign=True) would replace parameters, which are final: an optimizer"
                " may have them; allowed: assign=False, which copies values"
            )
        mine, missing, unexpected = select(state_dict, self.entries(), self._own, strict=strict)
        self.module.load_state_dict(mine, strict=False)
        return _IncompatibleKeys(missing, unexpected)

    def entries(self) -> dict[str, Entry]:
        """Give all entries of the whole model's state dict, and the stages that hold them."""
        return entries_of(self.module, self.split)

    def holds(self, entry: Entry) -> bool:
        """Tell whether a stage of this rank holds an entry."""
        return not entry.stages.isdisjoint(self._own)

    def saves(self, entry: Entry) -> bool:
        """Tell whether this rank saves an entry: the first replica's, with the stage that saves it."""
        return self.layout.replica == 0 and entry.saver in self._own

    @property
    def steps(self) -> int:
        """Steps that have run, of training and evaluation: random numbers depend on it, and on the seed."""
        return self._steps

    @steps.setter
    def steps(self, number: int) -> None:
        self._steps = number

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Give the modules of the whole model; those of other ranks have parameters on the meta device."""
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Refuse `.to()`, `.half()` and the like."""
        raise RuntimeError(
            "[smdp] the parameters of a pipelined model are final; move the model or change its dtype before"
            " pipeline()"
        )

    def train(self, mode: bool = True) -> PipelinedModule:
        """Switch training mode, as nn.Module."""
        self.training = mode
        self.module.train(mode)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> PipelinedModule:
        """Freeze or thaw the whole model, on all ranks.

        To do it for some parameters, set `requires_grad` of those of `module` by their names, alike on all
        ranks, also where they are meta tensors: every stage must know which gradients come.
        """
        self.module.requires_grad_(requires_grad)
        return self

    def _run(
        self,
        batch: Any,
        loss_fn: LossFunction | None,
        *,
        is_training: bool,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Any:
        if self._error is not None:
            raise RuntimeError(
                f"[smdp] an earlier step of this pipeline failed ({self._error}); start again from a"
                " checkpoint"
            ) from self._error
        if loss_fn is not None and not callable(loss_fn):
            raise ValueError(f"[smdp] loss_fn is {type(loss_fn).__name__}; allowed: a function, or None")
        schedule = self.schedule if is_training else self._evaluation
        parts = cut(batch, schedule.microbatches)
        self._program.arguments(parts[0])
        modes = Modes()
        key = self._key(parts[0], loss_fn, modes, is_training)
        prepared = self._plans.get(key) or _Prepared(Plan())
        step = Step(
            plan=prepared.plan,
            program=self._program,
            loss_fn=loss_fn,
            rank_of=schedule.rank_of,
            rank=self.layout.stage_rank,
            values=Channel(self.layout.values),
            reads=Channel(self.layout.reads),
            ghosts=self._ghosts,
            strands=self._strands,
            modes=modes,
            needs_grad=is_training,
            postpones=is_training and self._postpones,
            seed=self._seed,
            number=self._steps,
            microbatches=len(parts),
            first=self.layout.replica * len(parts),
        )
        self._steps += 1
        microbatches: list[Microbatch] = []
        try:
            with KeptState():
                is_new = not prepared.plan.is_complete
                if is_new:
                    microbatches.append(Microbatch(step, 0, parts[0], prepared.end))
                    same = microbatches[0].record()
                    if not self._plans:
                        same.check(prepared.plan)
                    self._prepare(prepared, schedule)
                for index in range(len(microbatches), len(parts)):
                    microbatches.append(Microbatch(step, index, parts[index], prepared.end))
                executor = Executor(
                    step,
                    prepared.row,
                    microbatches,
                    recorded=is_new,
                    scale=lambda loss: (
                        loss / len(parts) if scaler is None else scaler.scale(loss / len(parts))
                    ),
                    reduce_replicas=self._replicas.reduce,
                    reduce_tied=self._reduce_tied,
                )
                if is_training:
                    self._replicas.prepare()
                    self._tied.put_aside()
                executor.run()
                if is_new and self._plans:
                    # Later signatures wait for no other rank: only a model that branches on them differs.
                    same.check(prepared.plan)
                self._replicas.finish()
                self.timeline = executor.timeline
                if prepared.timeline is not None and not is_new:
                    prepared.timeline.write(executor.timeline, time.monotonic_ns())
                loss = self._mean_loss(microbatches, step)
        except BaseException as error:
            if prepared.plan.operations or step.has_begun or isinstance(error, SmdpError):
                self._fail(error, microbatches)
            # Otherwise no stage has done anything: all ranks are in the user's code, and find the same.
            raise
        self._plans[key] = prepared
        if len(self._plans) > _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        if any(microbatch.has_extra for microbatch in microbatches):
            return loss, [microbatch.extra for microbatch in microbatches]
        return loss

    def _reduce_tied(self, group: int) -> None:
        self._replicas.finish()
        self._tied.reduce(group)

    def _split_backward(self, model: nn.Module) -> None:
        fused = []
        for name, stages in self.split.stages.items():
            if self._own & set(stages):
                fused += [f"{name}.{parameter}" for parameter in split_backward(model.get_submodule(name))]
        if fused:
            _log.info(
                "[smdp] schedule %s: the weight gradients of %s come with those of their inputs, as their"
                " modules have children",
                self.schedule.name,
                ", ".join(fused),
            )

    def _prepare(self, prepared: _Prepared, schedule: schedules.Schedule) -> None:
        """Add transfers to the schedule, for the edges that the recording has found, and prove it."""
        is_training = not schedule.forward_only
        lowered = schedule.lower(
            skip_edges=prepared.plan.skip_edges(),
            reduce_grad=is_training,
            tied=self.split.tied() if is_training else (),
        )
        schedules.verify(lowered)
        if is_training and _core.trace_is_on():
            prepared.timeline = Timeline(lowered, self.split.partition, self.layout.stage_rank)
        prepared.row = read_row(lowered.rows[self.layout.stage_rank])
        if prepared.plan.output is not None:
            prepared.end = prepared.plan.last_needed(sorted(self._own))

    def _key(self, part: Any, loss_fn: LossFunction | None, modes: Modes, is_training: bool) -> Any:
        return (
            describe(part),
            is_training,
            tuple(module.training for module in self.module.modules()),
            modes.key(),
            _code_of(loss_fn),
            tuple(parameter.requires_grad for parameter in self.module.parameters()),
        )

    def _mean_loss(self, microbatches: list[Microbatch], step: Step) -> Tensor:
        owner = step.rank_of[microbatches[0].loss_stage]
        # A mean of losses in bf16 would be good for three digits.
        dtype = torch.promote_types(microbatches[0].loss_dtype, torch.float32)
        if owner == step.rank:
            losses = [m.loss_value for m in microbatches if m.loss_value is not None]
            mean = torch.stack(losses).mean(dtype=dtype)
        else:
            mean = torch.zeros((), dtype=dtype, device=self.device)
        if len(set(step.rank_of)) > 1:
            dist.broadcast(mean, group=self.layout.values, group_src=owner)
        return mean

    def _fail(self, error: BaseException, microbatches: list[Microbatch]) -> None:
        self._error = error
        # First of all, so that what waits for others ends.
        notes = " ".join(getattr(error, "__notes__", []))
        self.layout.abort(f"{type(error).__name__}: {error} {notes}".rstrip())
        for microbatch in microbatches:
            microbatch.abandon()


def _code_of(function: Any) -> object:
    """Give what is the same for a loss function that is made anew in every step."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", type(function))


class _Prepared:
    """A plan with the row that executes it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.row: list[Action] = []
        self.timeline: Timeline | None = None
        self.end = 1 << 30


def _device_of(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    return torch.device("cpu")
