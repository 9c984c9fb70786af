"""`smp.DistributedModel`: the model of the job, which is cut into partitions at the first step."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from smdp.torch.initialization.delayed_initialization import materialize
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.job.collective_calls import enter
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.averages_by_class import classify
from smdp.torch.model_parallel.modules.first_call import arguments_of_first_call, stop_at_first_call
from smdp.torch.model_parallel.modules.model_options import check_options
from smdp.torch.model_parallel.modules.offloading import offload_uncut
from smdp.torch.model_parallel.modules.one_loss import as_one
from smdp.torch.model_parallel.modules.partition_file import read_partition, write_partition
from smdp.torch.model_parallel.modules.partitioning import SMP, Decision, default_device, split
from smdp.torch.model_parallel.modules.partitions import Partitions
from smdp.torch.model_parallel.modules.replicas import Replicas
from smdp.torch.model_parallel.modules.sharded_partition import ShardedPartition
from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.model_parallel.modules.sixteen_bits import FP16_Module, lower_by_keys
from smdp.torch.model_parallel.modules.slice_averages import SliceAverages
from smdp.torch.model_parallel.modules.slices_of_state import own_slices
from smdp.torch.model_parallel.modules.step_inputs import StepInputs
from smdp.torch.model_parallel.modules.whole_model import Wrapped, gathered_again
from smdp.torch.model_parallel.tensor_parallelism.marks import check_not_replaced
from smdp.torch.model_parallel.tensor_parallelism.replacement import replace_marked
from smdp.torch.pipelining.pipelined.pipelining import check_model
from smdp.torch.tensor_parallelism.whole_state_dicts import accept_whole_state

_log = logging.getLogger(__name__)

Hook = Callable[[Any, Any], None]


class DistributedModel(Replicas):
    """Wraps a model to train it in partitions. A script can create only one.

    With one partition the model is ready at once. With several partitions, the first step cuts it. Until
    then, `parameters()` returns those of the whole model, and moves to a device are postponed.

    Args:
        module: The model, built as usual or in `smp.delay_param_initialization()`.
        trace_device: "cpu" or "gpu". Has no effect: the model is traced where its parameters are.
        trace_execution_times: Has no effect: times are always measured, unless `skip_tracing` is on.
        overlapping_allreduce: Has no effect: gradients are averaged as soon as they are complete.
        backward_passes_per_step: Number of steps between two averages over replicas, with one partition. With
            several partitions every step averages, which gives the same result.
        average_grads_across_microbatches: True: gradients are means over microbatches; False: sums.
        bucket_cap_mb: Size of a fusion buffer in MiB.
        trace_memory_usage: Has no effect: bytes are always measured, unless `skip_tracing` is on.
        broadcast_buffers: Whether replicas with one partition copy the buffers of the first replica in every
            forward.
        gradient_as_bucket_view: Has no effect.
        find_unused_parameters: Has no effect: unused parameters are always found.

    Attributes:
        partitioned: Whether the model has been cut.
        filled: Maps empty parameters to those that replaced them when this constructor initialized the model.

    Raises:
        ValueError: There is already a DistributedModel, the model cannot be cut, or an argument is wrong.
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        configuration = state.cfg
        if state.model is not None:
            raise ValueError(
                "[smdp] there is already an smp.DistributedModel in this process, and only one is possible."
                " To train several models, put them into one torch.nn.Module."
            )
        if isinstance(module, DistributedModel):
            raise ValueError("[smdp] this model is already an smp.DistributedModel")
        check_model(module, SMP)
        check_options(trace_device, trace_execution_times, backward_passes_per_step)
        super().__init__()
        self.filled: dict[nn.Parameter, nn.Parameter] = {}
        module = replace_marked(module)
        for optimizer in state.uncut_optimizers:
            check_not_replaced(each for group in optimizer.param_groups for each in group["params"])
        is_sharded = configuration.sharded_data_parallel_degree > 1
        if configuration.tensor_parallel_degree > 1:
            classify(module, is_sharded=is_sharded)
            accept_whole_state(module)
        # A model in shards is initialized unit by unit.
        is_filled_now = configuration.partitions == 1 and not is_sharded
        if is_filled_now and any(each.is_meta for each in module.parameters()):
            self._fill(module)
        lower_by_keys(module, configuration)
        self.training = module.training
        self.__dict__["_model"] = module
        # Shares the model's children instead of registering the model, so that names stay the same.
        self.__dict__ |= {name: vars(module)[name] for name in ("_modules", "_parameters", "_buffers")}
        self._is_mean = average_grads_across_microbatches
        self._is_in_step = False
        self._has_stepped = False
        self._device: torch.device | None = None
        self._decision: Decision | None = None
        self._steps = 0
        self._inputs: dict[object, StepInputs] = {}
        self._partition_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._step_hooks: list[Hook] = []
        self._body: SinglePartition | Partitions | None = None
        self._slice_averages: SliceAverages | None = None
        if configuration.partitions == 1:
            offload_uncut(configuration, module)
            mesh = state.running.mesh
            # Omitted if it is the default, because torch 2.13 and later warn about this argument.
            options = {} if broadcast_buffers else {"broadcast_buffers": False}
            passes: dict[str, Any] = {"passes_per_step": backward_passes_per_step}
            passes["is_mean"] = average_grads_across_microbatches
            if is_sharded:
                self._body = ShardedPartition(
                    module, mesh, configuration, broadcast_buffers=broadcast_buffers, **passes
                )
            else:
                passes["is_sharded"] = configuration.shard_optimizer_state
                self._body = SinglePartition(
                    module, mesh, options={"bucket_cap_mb": bucket_cap_mb, **options}, **passes
                )
        state.model = self
        if self._body is not None:
            self._average_slices()
            for optimizer in state.uncut_optimizers:
                optimizer.shard()

    # Steps.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. With several partitions, call it only in a step.

        Raises:
            RuntimeError: There are several partitions, and the call is outside of a step, or the second one
                in a microbatch.
        """
        stop_at_first_call(args, kwargs)
        if self._slice_averages is not None and torch.is_grad_enabled():
            self._slice_averages.expect()
        if self._body is None or (isinstance(self._body, Partitions) and not self._is_in_step):
            raise RuntimeError(
                f"[smdp] the model with {state.cfg.partitions} partitions is called outside of a step; call"
                " it in a function decorated with @smp.step"
            )
        result = self._body.call(args, kwargs)
        if self._slice_averages is not None and not self._is_in_step:
            self._slice_averages.watch(result)
        return result

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Replaces loss.backward() in a step: the schedule decides when the backward runs.

        Args:
            tensors: The loss, or several tensors, whose gradients are added.
            grad_tensors: The gradients of these tensors. Default: 1, for tensors of one number.

        Raises:
            RuntimeError: The call is outside of a step, the second one in a microbatch, or after cpu().
        """
        if self._body is None or not (self._is_in_step or isinstance(self._body, SinglePartition)):
            raise RuntimeError(
                "[smdp] model.backward(loss) is called outside of a step; call it in a function decorated"
                " with @smp.step, after model(...)"
            )
        if state.cfg.partitions > 1 and isinstance(self._body, SinglePartition):
            raise RuntimeError(
                "[smdp] model.backward(loss) is called after model.cpu(), which ends training because the new"
                " parameters of the whole model are in no optimizer; only steps without backward are possible"
            )
        self._body.backward(as_one(tensors, grad_tensors))

    def agreed_inputs(
        self, identity: object, name: str, given: Callable[[], dict[Any, Any]]
    ) -> dict[Any, Any]:
        """Begins a step: returns the arguments that all ranks of the pipeline use. Called by smp.step.

        Args:
            identity: A key that is equal for step functions which are created anew in every step.
            name: Name of the step function.
            given: Returns this rank's arguments, or raises if they do not fit the function.
        """
        if not self._is_cut_over_ranks():
            return given()
        enter("smp.step")
        group = state.running.mesh.group("pp")
        inputs = self._inputs.setdefault(identity, StepInputs(name, state.running.mesh))
        if isinstance(self._body, Partitions):
            return inputs.agreed(given, self._body.agree)
        return inputs.agreed(given, lambda number: len(set(on_every_rank(lambda: number, group))) == 1)

    def run_step(
        self, program: Callable[[Any], Any], parts: Sequence[Any], *, is_training: bool
    ) -> list[Any]:
        """Runs a step function for each microbatch. Called by smp.step.

        Returns:
            The function's results, one per microbatch.
        """
        self._is_in_step = True
        try:
            if self._body is None:
                self._cut(program, parts[0])
            assert self._body is not None
            if not self._has_stepped:
                for hook in list(self._partition_hooks.values()):
                    hook(self, state.optimizer)
                if isinstance(self._body, Partitions):
                    self._body.agree(0)
            if is_training and state.optimizer is not None:
                state.optimizer.forget_gradients()
            results = self._body.run_step(program, parts, is_training=is_training)
            if is_training and not self._body.is_between:
                self.finish_gradients()
        finally:
            self._is_in_step = False
        if not self._has_stepped:
            self._has_stepped = True
            for hook in self._step_hooks:
                hook(self, state.optimizer)
        return results

    def finish_gradients(self) -> None:
        """Ends averages of gradients. Called after a step, and before an optimizer uses gradients."""
        if self._slice_averages is not None:
            self._slice_averages.average()

    def check_not_in_step(self) -> None:
        """Checks that no step is running.

        Raises:
            RuntimeError: A step is running.
        """
        if self._is_in_step:
            raise RuntimeError(
                "[smdp] a step is called within a step; call the inner function itself, without @smp.step"
            )

    def register_post_partition_hook(self, hook: Hook) -> RemovableHandle:
        """Registers hook(model, optimizer), which is called at the first step after the model is cut."""
        handle = RemovableHandle(self._partition_hooks)
        self._partition_hooks[handle.id] = hook
        return handle

    def register_post_step_hook(self, hook: Hook) -> None:
        """Registers hook(model, optimizer), which is called after the first step."""
        self._step_hooks.append(hook)

    # The parts of the model.

    def fix_partition(
        self, decision: Mapping[str, int], steps: int = 0, ranks: Sequence[int] | None = None
    ) -> None:
        """Makes the first step cut the model as in an earlier job, and continues its step count.

        Args:
            decision: The `partition_decision` of the earlier job.
            steps: Number of training and evaluation steps that had run, on which random numbers depend.
            ranks: The `partition_ranks` of the earlier job. None: the schedule's own placement.

        Raises:
            ValueError: The model has already been cut in another way.
        """
        self._steps = steps
        if self._body is None:
            self._decision = Decision(dict(decision), None if ranks is None else tuple(ranks))
        elif dict(decision) == self._body.decision and ranks in (None, self._body.rank_of):
            if self.pipe is not None:
                self.pipe.steps = steps
        else:
            raise ValueError(
                "[smdp] the model has already been cut in another way than in the checkpoint; load the"
                " checkpoint before the first step"
            )

    def get_module(self) -> nn.Module:
        """Returns the wrapped model."""
        return self._model

    @property
    def module(self) -> Any:
        """An object with the model's attributes and the model as `.module`; scripts use both levels.

        With `fp16`, there is an `FP16_Module` in between.
        """
        return Wrapped(FP16_Module.around(self._model)) if state.cfg.fp16 else Wrapped(self._model)

    def __getattr__(self, name: str) -> Any:
        """Returns attributes of the model."""
        if name in ("_model", "_body"):
            raise AttributeError(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._model, name)

    # Called by torch.

    def cpu(self) -> DistributedModel:
        """Gathers all parameters on the CPU of every rank.

        All ranks of the model-parallel group must call this.

        Afterwards get_module() returns a whole model that can be used as if it had never been cut. Its
        parameters are new, so it cannot be trained any further. A model that is not cut is only moved.
        Distributed modules stay divided.
        """
        if not isinstance(self._body, Partitions):
            super().cpu()
            return self
        whole = {name: value.cpu() for name, value in self.state_dict().items() if isinstance(value, Tensor)}
        self._body = gathered_again(self._model, own_slices(whole, self._model))
        return self

    def train(self, mode: bool = True) -> DistributedModel:
        """Sets training or evaluation mode, as in nn.Module."""
        self.training = mode
        self._model.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves or converts the model. With several partitions, moving is postponed until the model is cut.

        Raises:
            RuntimeError: The model has been cut, and the call would change its device or dtype; or its
                parameters are in shards or have no values yet, and the call would change the dtype.
        """
        if isinstance(self._body, SinglePartition) and self.shards is None:
            self._model._apply(fn, recurse)
            return self

        def wanted(tensor: Tensor) -> Tensor:
            device = "cpu" if tensor.is_meta else tensor.device
            found: Tensor = fn(torch.empty(0, dtype=tensor.dtype, device=device))
            return found

        own = [*self.parameters(), *self.buffers()]
        changes = any(wanted(tensor).dtype != tensor.dtype for tensor in own)
        if self.shards is not None:
            if changes:
                raise RuntimeError(
                    "[smdp] the dtype of parameters in shards cannot change; set fp16 or bf16 to true to"
                    " compute in 16 bits"
                )
            self._model._apply(fn, recurse)
        elif self._body is None:
            if changes and self._is_delayed():
                raise RuntimeError(
                    "[smdp] the dtype cannot be changed while the model's parameters have no values; build"
                    " the model in smp.model_creation(dtype=...)"
                )
            if changes:
                self._model._apply(lambda tensor: tensor.to(wanted(tensor).dtype), recurse)
            self._device = fn(torch.empty(0)).device
        elif changes or any(wanted(tensor).device != tensor.device for tensor in own):
            raise RuntimeError(
                "[smdp] the model has been cut, so the device and dtype of its parameters can no longer"
                " change; convert or move it before the first step"
            )
        return self

    # Cutting the model.

    def _fill(self, module: nn.Module) -> None:
        """Initializes the values of a model that was built without memory and will not be cut."""
        before = list(module.parameters())
        materialize(module, lambda name: True, default_device())
        self.filled = dict(zip(before, module.parameters(), strict=True))
        for optimizer in state.uncut_optimizers:
            optimizer.take_filled(self.filled)

    def _cut(self, program: Callable[[Any], Any], part: Any) -> None:
        before = {parameter: name for name, parameter in self._model.named_parameters()}
        example = None
        if not state.cfg.skip_tracing:
            example = arguments_of_first_call(program, part)
        if self._device is not None and not self._is_delayed():
            self._model.to(self._device)
        if self._decision is None and state.cfg.load_partition:
            path = Path(state.cfg.partition_file)
            self._decision = on_every_rank(lambda: read_partition(path))[0]
        pipe = split(self._model, state.running.mesh, state.cfg, example, self._decision, self._device)
        pipe.steps = self._steps
        self._body = Partitions(pipe, is_mean=self._is_mean)
        self._average_slices()
        for optimizer in state.uncut_optimizers:
            optimizer.keep_own(before, dict(pipe.named_parameters()))
            optimizer.shard()
        on_every_rank(self._load_deferred, state.running.mesh.group("mp"))
        if state.cfg.partition_file and not state.cfg.load_partition:
            on_every_rank(lambda: self._write_partition(Path(state.cfg.partition_file)))
        if dist.get_rank() == 0:
            lines = [f"{name}: {partition}" for name, partition in (self.partition or {}).items() if name]
            _log.info("Partition assignments:\n%s", "\n".join(lines))

    def _write_partition(self, path: Path) -> None:
        assert self._body is not None
        if dist.get_rank() == 0:
            write_partition(path, self._body.decision, self._body.rank_of)

    def _average_slices(self) -> None:
        """Averages gradients of whole parameters in shards over the ranks of a tensor-parallel group."""
        cfg = state.cfg
        if cfg.tensor_parallel_degree > 1 and cfg.sharded_data_parallel_degree > 1:
            self._slice_averages = SliceAverages(
                self.named_parameters(),
                [each for _, each in self.named_buffers()],
                state.running.mesh,
                has_own_samples=not cfg.prescaled_batch,
            )

    def _is_cut_over_ranks(self) -> bool:
        """Returns whether several ranks run a step, now or once the first step has cut the model."""
        return state.cfg.partitions > 1 and not isinstance(self._body, SinglePartition)
