"""A model whose stages lie on several ranks, with the step that trains it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.module import _IncompatibleKeys

from smdp import pipeline as schedules
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.pipelining.engine.actions import read_row
from smdp.torch.pipelining.engine.computations import Computations
from smdp.torch.pipelining.engine.executor import Timed
from smdp.torch.pipelining.engine.handlers import Handlers
from smdp.torch.pipelining.engine.lockstep import Lockstep
from smdp.torch.pipelining.engine.program import LossFunction, Program, loss_of
from smdp.torch.pipelining.engine.reduction_actions import ReductionActions
from smdp.torch.pipelining.engine.same_batch import check_same_batch
from smdp.torch.pipelining.engine.steps import Steps, Tables
from smdp.torch.pipelining.engine.transfer_actions import TransferActions
from smdp.torch.pipelining.gradients.replica_gradients import ReplicaGradients
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.gradients.weight_gradients import split_backward
from smdp.torch.pipelining.state_dicts.state_entries import Entry, entries_of, select
from smdp.torch.pipelining.tensors.slicing import cut
from smdp.torch.pipelining.tensors.values import writer_of
from smdp.torch.pipelining.units.current_microbatch import current_microbatch
from smdp.torch.pipelining.units.splitting import Split, keep_own, make_units
from smdp.torch.pipelining.units.wording import PIPELINE, Wording
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.recompute.activation_checkpoints import has_checkpoints

_log = logging.getLogger(__name__)

live: weakref.WeakSet[PipelinedModule] = weakref.WeakSet()


class PipelinedModule(nn.Module):
    """What `smdp.torch.pipeline()` gives: this rank's part of a model, and the steps of all ranks.

    Args:
        model: The whole model; its foreign parameters are given up.
        split: Where it is cut.
        schedule: Of the computations of a training step.
        tables: Gives schedules for other numbers of microbatches.
        mesh: Ranks and groups.
        seed: Of dropout; the same on all ranks.
        is_compiled: Modules go through `torch.compile`.
        is_in_lockstep: Host reads resume at fixed places of the schedule.
        wording: Of the API that the user wrote.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        schedule: schedules.Schedule,
        tables: Callable[[int], Tables],
        mesh: ParallelMesh,
        seed: int,
        *,
        is_compiled: bool = False,
        is_in_lockstep: bool = False,
        wording: Wording = PIPELINE,
    ) -> None:
        super().__init__()
        self._wording = wording
        self.training = model.training
        self.split = split
        self.schedule = schedule
        self.mesh = mesh
        own = {stage for stage, rank in enumerate(schedule.rank_of) if rank == mesh.stage_rank}
        self._own = own
        keep_own(model, split.weights, own, weakref.ref(self))
        # Not a submodule: names of parameters and of the state dict stay those of the model.
        self.__dict__["module"] = model
        self.device = _device_of(model)
        postpones = any(action.kind == "W" for row in schedule.rows for action in read_row(row))
        # Compiled code gives both gradients at once.
        postpones &= not is_compiled
        if postpones:
            self._split_backward(model)
        self._units = make_units(model, split.stages)
        if is_compiled:
            for unit in self._units:
                unit.compile()
        self._program = Program(model)
        self._has_compared = False
        parameters = dict(self.named_parameters())
        buffers = dict(self.named_buffers())

        def replicas_of(name: str) -> ProcessGroupSmdp | None:
            # All data-parallel ranks hold a whole weight. Of one that is cut, fewer hold the same part.
            axis: Axis = "rdp" if name in parameters and cut_of(parameters[name]) is not None else "dp"
            return mesh.step_group(axis) if len(mesh.ranks(axis)) > 1 else None

        replicas = ReplicaGradients(parameters, buffers, split.weights, own, replicas_of)
        tied = TiedGradients(parameters, split, mesh, schedule.rank_of)
        handlers = Handlers(
            [Computations(), TransferActions(), ReductionActions(replicas, tied, split.tied())]
        )
        if is_in_lockstep:
            handlers.add(Lockstep())
        self._steps = Steps(
            model,
            split,
            tables,
            schedule.rank_of,
            mesh,
            replicas,
            tied,
            handlers,
            device=self.device,
            seed=seed,
            postpones=postpones,
            wording=wording,
        )
        live.add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, within the program of a run_step().

        Raises:
            RuntimeError: Outside of a step: one call cannot run a pipeline. Or it is the second in it.
        """
        microbatch = current_microbatch()
        if microbatch is None:
            raise RuntimeError(f"[smdp] a split model is called only within a step; {self._wording.step}")
        return microbatch.call_model(self.module, args, self._program.without_cache(args, kwargs))

    def backward(self, loss: Tensor) -> None:
        """Name the loss of a microbatch, within the program of a run_step(): the schedule runs its backward.

        Raises:
            RuntimeError: Outside of a step, or the microbatch has a loss already.
        """
        microbatch = current_microbatch()
        if microbatch is None:
            raise RuntimeError("[smdp] backward(loss) is called only within the program of run_step()")
        microbatch.take_loss(loss)

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
            rank too: those of a megabyte or more are fetched by the rank that reads them, when it does, so
            read them before `destroy_process_group()`.

        Raises:
            ValueError: Batch, model or loss cannot be executed so; nothing hangs on other ranks.
            TypeError: The scaler is another one.
            smdp.SmdpError: A rank is gone; the message names it and what was awaited.
        """
        if scaler is not None and type(scaler).unscale_ is torch.amp.GradScaler.unscale_:
            raise TypeError(
                f"[smdp] scaler is a {type(scaler).__module__}.{type(scaler).__name__}, which sees the"
                " gradients of one stage only; use smdp.torch.GradScaler."
            )
        count = self.schedule.microbatches
        return self._step(
            batch,
            loss_fn,
            is_training=True,
            scale=lambda loss: loss / count if scaler is None else scaler.scale(loss / count),
        )

    def eval_step(self, batch: Any, loss_fn: LossFunction | None = None) -> Any:
        """Run the forward only, without gradients; arguments and result as of train_step()."""
        return self._step(batch, loss_fn, is_training=False, scale=lambda loss: loss)

    @overload
    def run_step(
        self,
        program: Callable[[Any], Any],
        microbatches: Sequence[Any],
        *,
        is_training: bool,
        scale: Callable[[Tensor], Tensor] | None = ...,
        mean_loss: Literal[False] = ...,
    ) -> list[Any]: ...

    @overload
    def run_step(
        self,
        program: Callable[[Any], Any],
        microbatches: Sequence[Any],
        *,
        is_training: bool,
        scale: Callable[[Tensor], Tensor] | None = ...,
        mean_loss: Literal[True],
    ) -> tuple[Tensor, list[Any]]: ...

    def run_step(
        self,
        program: Callable[[Any], Any],
        microbatches: Sequence[Any],
        *,
        is_training: bool,
        scale: Callable[[Tensor], Tensor] | None = None,
        mean_loss: bool = False,
    ) -> Any:
        """Run a step of any code around the model.

        Args:
            program: Called once per microbatch, on every rank of the pipeline. In it, calling this module
                runs the model, once, and backward(loss) names the value whose backward the schedule runs;
                without it there is none. The other limits are those of a loss function, see `pipeline()`.
            microbatches: One argument of `program` each, equal in structure and shapes; their number may
                differ from step to step.
            is_training: Gradients are computed; otherwise, as under `torch.no_grad()`.
            scale: Makes of a microbatch's loss what its backward begins with. Default: loss / number of
                microbatches, so that `.grad` holds the mean.
            mean_loss: Give the mean of what backward(loss) has named as well: one message, where each tensor
                that `program` returns is one per microbatch.

        Returns:
            A list of what `program` gave for each microbatch, its tensors real on every rank, large ones when
            they are read; with `mean_loss` the mean, a scalar in fp32 or fp64, and that list.

        Raises:
            ValueError: Model or loss cannot be executed so; nothing hangs on other ranks. Or there is no loss
                to give the mean of.
            smdp.SmdpError: A rank is gone; the message names it and what was awaited.
        """
        if not microbatches:
            raise ValueError("[smdp] run_step() got no microbatches; allowed: one or more")
        mean, results = self._steps.run(
            program,
            microbatches,
            identity=program,
            is_training=is_training,
            scale=scale or (lambda loss: loss / len(microbatches)),
            wants_mean=mean_loss,
        )
        return (mean, results) if mean_loss else results

    def _step(
        self,
        batch: Any,
        loss_fn: LossFunction | None,
        *,
        is_training: bool,
        scale: Callable[[Tensor], Tensor],
    ) -> Any:
        if loss_fn is not None and not callable(loss_fn):
            raise ValueError(f"[smdp] loss_fn is {type(loss_fn).__name__}; allowed: a function, or None")
        if is_training and isinstance(loss_fn, nn.Module):
            trained = [name for name, parameter in loss_fn.named_parameters() if parameter.requires_grad]
            if trained:
                raise ValueError(
                    f"[smdp] loss_fn is a {type(loss_fn).__name__} that trains {', '.join(trained)}, which"
                    " would get gradients on the last stage alone; make it a part of the model, whose forward"
                    " then gives the loss."
                )
        if not self._has_compared:
            check_same_batch(self.mesh.step_group("pp"), batch)
        parts = cut(batch, self.schedule.microbatches)
        self._program.check(parts[0])
        self._program.check_keys(parts[0], loss_fn)
        self._has_compared = True

        loss_of_output = loss_of(loss_fn)

        def program(microbatch: Any) -> Any:
            args, kwargs = self._program.arguments(microbatch)
            loss = loss_of_output(self(*args, **kwargs), microbatch)
            extra = None
            if has_extra := isinstance(loss, tuple) and len(loss) == 2:
                loss, extra = loss
            self.backward(loss)
            return has_extra, extra

        mean, results = self._steps.run(
            program, parts, identity=loss_fn, is_training=is_training, scale=scale, wants_mean=True
        )
        if any(has_extra for has_extra, _ in results):
            return mean, [extra for _, extra in results]
        return mean

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
        return self.mesh.replica == 0 and entry.saver in self._own

    @property
    def layout(self) -> ParallelMesh:
        """The mesh, under the name that scripts have for it."""
        return self.mesh

    @property
    def timeline(self) -> list[Timed]:
        """What the last step did on this rank, and when."""
        return self._steps.timeline

    @property
    def steps(self) -> int:
        """Steps that have run, of training and evaluation: random numbers depend on it, and on the seed."""
        return self._steps.number

    @steps.setter
    def steps(self, number: int) -> None:
        self._steps.number = number

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Give the modules of the whole model; those of other ranks have parameters on the meta device."""
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Refuse `.to()`, `.half()` and the like."""
        raise RuntimeError(
            "[smdp] the parameters of a split model are final; move the model or change its dtype before"
            " it is split"
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

    def _split_backward(self, model: nn.Module) -> None:
        fused = []
        for name, stages in self.split.stages.items():
            module = model.get_submodule(name)
            if self._own & set(stages) and has_checkpoints(module):
                fused += [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
            elif self._own & set(stages):
                fused += split_backward(module, name)
        if fused:
            _log.warning(
                "[smdp] schedule %s: the weight gradients of %s come with those of their inputs, as their"
                " modules have children or recompute their activations",
                self.schedule.name,
                ", ".join(fused),
            )


def _device_of(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    return torch.device("cpu")
