"""The model returned by `smdp.torch.pipeline()`, with its training steps."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.module import _IncompatibleKeys

from smdp import pipeline as schedules
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.engine.actions import read_row
from smdp.torch.pipelining.engine.computations import Computations
from smdp.torch.pipelining.engine.executor import Timed
from smdp.torch.pipelining.engine.handlers import ActionHandler, Handlers
from smdp.torch.pipelining.engine.program import LossFunction, LossScaler, Program, loss_of
from smdp.torch.pipelining.engine.reduction_actions import ReductionActions
from smdp.torch.pipelining.engine.same_batch import check_same_batch
from smdp.torch.pipelining.engine.steps import Steps, Tables
from smdp.torch.pipelining.engine.transfer_actions import TransferActions
from smdp.torch.pipelining.gradients.reductions import Reductions
from smdp.torch.pipelining.gradients.sharded_replicas import ShardedReplicas
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
    """A model whose stages are on several ranks, as returned by `smdp.torch.pipeline()`.

    Each rank holds the parameters of its own stages, and runs the steps together with the other ranks.

    Args:
        model: The whole model; parameters that belong to other ranks are released.
        split: The assignment of modules to stages.
        schedule: The schedule of a training step's computations.
        tables: Returns the schedules for other numbers of microbatches.
        mesh: The ranks and groups of the job.
        seed: Seed for dropout, the same on all ranks.
        is_compiled: Whether modules are compiled by `torch.compile`.
        wording: Names of the API that the user called, for messages.
        features: More handlers, which add actions to the schedule.
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
        wording: Wording = PIPELINE,
        features: Sequence[ActionHandler] = (),
    ) -> None:
        super().__init__()
        self._wording = wording
        self.training = model.training
        self.split = split
        self.schedule = schedule
        self.mesh = mesh
        own = self._own = {stage for stage, rank in enumerate(schedule.rank_of) if rank == mesh.stage_rank}
        keep_own(model, split.weights, own, weakref.ref(self))
        # Not registered as a submodule, so that parameters keep their names in the model.
        self.__dict__["module"] = model
        self.device = _device_of(model)
        postpones = not is_compiled  # compiled code computes both gradients at once
        postpones &= any(action.kind == "W" for row in schedule.rows for action in read_row(row))
        if postpones:
            self._split_backward(model)
        self._units = make_units(model, split.stages)
        if is_compiled:
            for unit in self._units:
                unit.compile()
        self._program = Program(model)
        self._has_compared = False
        named = dict(self.named_parameters()), dict(self.named_buffers())
        self._reductions = Reductions(*named, split, own, mesh, schedule.rank_of)
        replicas, tied = self._reductions.replicas, self._reductions.tied
        handlers = Handlers(
            [Computations(), TransferActions(), ReductionActions(replicas, tied, split.tied())]
        )
        for feature in features:
            handlers.add(feature)
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
        """Runs the model. Call it only inside the program of a run_step().

        Raises:
            RuntimeError: It is called outside of a step, or for the second time in a microbatch.
        """
        microbatch = current_microbatch()
        if microbatch is None:
            raise RuntimeError(f"[smdp] a split model can be called only within a step; {self._wording.step}")
        return microbatch.call_model(self.module, args, self._program.without_cache(args, kwargs))

    def backward(self, loss: Tensor) -> None:
        """Marks the loss of a microbatch, whose backward the schedule runs.

        Call it only inside the program of a run_step().

        Raises:
            RuntimeError: It is called outside of a step, or the microbatch already has a loss.
        """
        microbatch = current_microbatch()
        if microbatch is None:
            raise RuntimeError("[smdp] backward(loss) can be called only within the program of run_step()")
        microbatch.take_loss(loss)

    def train_step(
        self, batch: Any, loss_fn: LossFunction | None = None, *, scaler: LossScaler | None = None
    ) -> Any:
        """Runs forward and backward of all microbatches; `.grad` then holds the mean gradient over them.

        Every rank of the pipeline must call this with the same batch.

        Args:
            batch: The batch of this replica, as a tensor, tuple or dict. Its tensors are cut into
                microbatches along dimension 0. The model's forward gets the items that it accepts.
            loss_fn: A function called on every rank as loss_fn(output) or loss_fn(output, microbatch). It
                returns the loss, which is a scalar tensor, or a tuple (loss, anything). Default: the loss
                that the model returns.
            scaler: An smdp.torch.GradScaler or MixedPrecision, which multiplies the loss before backward.

        Returns:
            The mean loss over the microbatches on every rank, as a scalar tensor in fp32, or in fp64 if the
            loss is. If loss_fn returns tuples, (mean loss, list of their second items, one per microbatch).
            These hold real tensors on every rank. A tensor of 1 MiB or more is fetched when the rank first
            reads it, so read it before `destroy_process_group()`.

        Raises:
            ValueError: The batch, the model or the loss cannot run in a pipeline. Other ranks also raise.
            TypeError: The scaler is a torch.amp.GradScaler.
            smdp.SmdpError: A rank is gone; the message names the rank and the transfer that waited for it.
        """
        if getattr(type(scaler), "unscale_", None) is torch.amp.GradScaler.unscale_:
            raise TypeError(
                f"[smdp] scaler is a {type(scaler).__module__}.{type(scaler).__name__}, which sees only the"
                " gradients of this rank's stages; use smdp.torch.GradScaler."
            )
        forget = getattr(scaler, "forget_gradients", None)
        if forget is not None:
            forget()  # only ranks with the loss call scale()
        count = self.schedule.microbatches
        return self._step(
            batch,
            loss_fn,
            is_training=True,
            scale=lambda loss: loss / count if scaler is None else scaler.scale(loss / count),
        )

    def eval_step(self, batch: Any, loss_fn: LossFunction | None = None) -> Any:
        """Runs the forward only, without gradients. Arguments and result are those of train_step()."""
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
        """Runs a training or evaluation step with your own code around the model.

        Args:
            program: A function that is called once per microbatch on every rank of the pipeline. It may call
                this module once, which runs the model, and backward(loss), which marks the loss whose
                backward the schedule runs. Without a call of backward(loss) the step computes no gradients.
                The code has the same limits as a loss function, see `pipeline()`.
            microbatches: The arguments of `program`, one per microbatch, equal in structure and shapes. Their
                number may differ from step to step.
            is_training: Whether gradients are computed; if not, the step runs as under `torch.no_grad()`.
            scale: Returns the tensor from which backward starts, given a microbatch's loss. Default: loss /
                number of microbatches, so that `.grad` holds the mean.
            mean_loss: Whether to also return the mean of the losses marked by backward(loss). This takes one
                message, whereas a tensor that `program` returns takes one message per microbatch.

        Returns:
            The list of what `program` returned for each microbatch, with real tensors on every rank; large
            ones are fetched when they are read. With `mean_loss`, a tuple of the mean, a scalar tensor in
            fp32 or fp64, and that list.

        Raises:
            ValueError: The model or the loss cannot run in a pipeline, or `mean_loss` is set and there is no
                loss. Other ranks also raise.
            smdp.SmdpError: A rank is gone; the message names the rank and the transfer that waited for it.
        """
        if not microbatches:
            raise ValueError("[smdp] run_step() got no microbatches; expected at least one")
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
            raise ValueError(
                f"[smdp] loss_fn is of type {type(loss_fn).__name__}; expected a function or None"
            )
        if is_training and isinstance(loss_fn, nn.Module):
            trained = [name for name, parameter in loss_fn.named_parameters() if parameter.requires_grad]
            if trained:
                raise ValueError(
                    f"[smdp] loss_fn is a {type(loss_fn).__name__} that trains {', '.join(trained)}, which"
                    " would get gradients on the last stage only. Make it part of the model, so that the"
                    " model's forward returns the loss."
                )
        if not self._has_compared:
            check_same_batch(self.mesh.step_group("mp"), batch)
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
        """Yields this rank's parameters with their names in the model."""
        for name, parameter in self.module.named_parameters(prefix, recurse, remove_duplicate):
            if not parameter.is_meta:
                yield name, parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields the buffers of this rank's modules, and those between modules that this rank updates."""
        foreign = [
            f"{unit.name}." for unit in self._units if not self._own & set(self.split.stages[unit.name])
        ]
        for name, buffer in self.module.named_buffers(prefix, recurse, remove_duplicate):
            is_foreign = name.removeprefix(prefix).lstrip(".").startswith(tuple(foreign))
            writer = writer_of(buffer)
            if not is_foreign and (writer is None or writer in self._own):
                yield name, buffer

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Returns this rank's parameters and buffers; tied parameters appear under all of their names."""
        found = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        for name, entry in self.entries().items():
            if not self.holds(entry):
                del found[prefix + name]
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copies values into this rank's parameters and buffers.

        Args:
            state_dict: The state dict of this rank or of the whole model; entries of other ranks are skipped.
            strict: Whether to raise if an entry of this rank is missing, or if the model lacks an entry.
            assign: Must be False, because parameters cannot be replaced.

        Returns:
            The missing and the unexpected keys, as in `torch.nn.Module.load_state_dict`.

        Raises:
            ValueError: See `strict` and `assign`; or a shape differs. Nothing has been changed.
        """
        if assign:
            raise ValueError(
                "[smdp] load_state_dict(assign=True) would replace the parameters of a split model, which an"
                " optimizer may already hold; use assign=False, which copies values into them"
            )
        mine, missing, unexpected = select(state_dict, self.entries(), self._own, strict=strict)
        self.module.load_state_dict(mine, strict=False)
        return _IncompatibleKeys(missing, unexpected)

    def entries(self) -> dict[str, Entry]:
        """Returns all entries of the whole model's state dict, with the stages that hold them."""
        return entries_of(self.module, self.split)

    def holds(self, entry: Entry) -> bool:
        """Returns whether a stage of this rank holds an entry."""
        return not entry.stages.isdisjoint(self._own)

    def saves(self, entry: Entry, *, any_replica: bool = False) -> bool:
        """Returns whether this rank, in the first replica or in any, has the stage that saves an entry."""
        return (any_replica or self.mesh.replica == 0) and entry.saver in self._own

    @property
    def process_group(self) -> ProcessGroupSmdp:
        """The replicas of the slices that this rank holds. All ranks of the job ask for it first together."""
        return self.mesh.group("rdp")

    @property
    def stage_group(self) -> ProcessGroupSmdp:
        """The replicas of all slices of this rank's stages; see `process_group`."""
        return self.mesh.group("dp")

    def averaged_gradients(self, feature: str, trained: Collection[Parameter]) -> ShardedReplicas:
        """Returns the gradients that replicas average; see `Reductions.shardable()`."""
        return self._reductions.shardable(feature, trained)

    @property
    def layout(self) -> ParallelMesh:
        """The mesh. Kept because scripts use this name."""
        return self.mesh

    @property
    def timeline(self) -> list[Timed]:
        """The actions of the last step on this rank, with their times."""
        return self._steps.timeline

    @property
    def steps(self) -> int:
        """Number of training and evaluation steps so far; random numbers depend on it and on the seed."""
        return self._steps.number

    @steps.setter
    def steps(self, number: int) -> None:
        self._steps.number = number

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yields the modules of the whole model; parameters of other ranks are on the meta device."""
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Raises an error, because `.to()`, `.half()` and similar calls would replace parameters."""
        raise RuntimeError(
            "[smdp] the parameters of a split model cannot be replaced; move the model or change its dtype"
            " before splitting it"
        )

    def train(self, mode: bool = True) -> PipelinedModule:
        """Sets training or evaluation mode, as in nn.Module."""
        self.training = mode
        self.module.train(mode)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> PipelinedModule:
        """Freezes or unfreezes the whole model on all ranks.

        To change single parameters, set `requires_grad` on the parameters of `module`, by name and
        identically on all ranks, including those on the meta device: every stage must know which gradients
        will arrive.
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
                "[smdp] schedule %s: the weight gradients of %s are computed together with the input"
                " gradients, because their modules have children or recompute their activations",
                self.schedule.name,
                ", ".join(fused),
            )


def _device_of(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    return torch.device("cpu")
