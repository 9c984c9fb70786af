"""`torch.nn.parallel.DistributedDataParallel` on the core's gradient reducer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook
from torch.distributed.utils import _sync_module_states
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp.torch.data_parallel.backward_gradients import BackwardGradients
from smdp.torch.data_parallel.comm_hook import CommHook, comm_hook
from smdp.torch.data_parallel.counted_steps import CountedSteps, bytes_of
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.input_wait import watch
from smdp.torch.data_parallel.join_hook import EmptySteps
from smdp.torch.data_parallel.kept_gradients import copy_kept, set_kept
from smdp.torch.data_parallel.loss_scale import follow
from smdp.torch.data_parallel.output_tensors import tensors_in
from smdp.torch.data_parallel.reducer_options import (
    KEEPING_COMPRESSIONS,
    check_factor,
    check_reducer_options,
)
from smdp.torch.data_parallel.same_parameters import check_none_is_new, check_still_frozen
from smdp.torch.data_parallel.same_state import check_same_state
from smdp.torch.data_parallel.sparse_gradients import sparse_parameters
from smdp.torch.data_parallel.stand_in_reducer import StandInReducer
from smdp.torch.data_parallel.supported_modules import (
    bind_arguments,
    checked_group,
    choose_replicas,
    refuse_what_only_torch_has,
    refuse_what_takes_gradients,
)
from smdp.torch.mesh.cuts import mesh_of_slices
from smdp.torch.mesh.told_failures import tells_failures
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_NO_COMM_HOOKS = (
    "[smdp] smdp.torch.DistributedDataParallel does not support comm hooks for a module on the CPU. Use"
    " compression=..., or use torch.nn.parallel.DistributedDataParallel with the backend 'smdp'."
)


class DistributedDataParallel(TorchDistributedDataParallel):
    """Averages the gradients of a module over the ranks of a group while backward runs.

    This is a subclass of `torch.nn.parallel.DistributedDataParallel` with the same arguments, state dict,
    `no_sync` and `join`. Without compression, training gives the same bits as torch's DDP over smdp; the page
    on data parallel training lists the exceptions. Parameters that some ranks do not use need no option.
    Modules on a GPU keep torch's reducer, which fuses gradients on the device. smdp transfers its buckets and
    compresses them with `comm_hook` if `compression` is set.

    Args:
        module: The module to train. It must be the same on all ranks.
        *args: The remaining positional arguments of torch's class.
        compression: The format in which float32 gradients travel between hosts: "none", "fp16", "bf16",
            "int8" or "topk". Gradients are never compressed within a host.
        bucket_cap_mb: The largest size of a fusion buffer in MiB; 25 by default. The cost model may choose
            smaller buffers.
        topk_ratio: The fraction of the gradient that "topk" sends.
        topk_momentum: The momentum that "topk" applies. Set it to the optimizer's momentum, and set the
            optimizer's to 0.
        **kwargs: The keyword arguments of torch's class. `find_unused_parameters`, `gradient_as_bucket_view`
            and `batched_grad_copy` are accepted but not needed. `static_graph` is needed if a parameter
            receives its gradient several times in a backward, for example with reentrant checkpointing.
            `process_group` defaults to all ranks, and for a module that `tensor_parallel()` has divided, to
            the ranks with the same slices.

    Raises:
        ValueError: An argument is not supported, or the group does not use the backend "smdp". Any backend
            works for a module on a GPU without compression.
        smdp.MismatchError: The modules differ between ranks. The message names the first difference.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model, compression="bf16")  # doctest: +SKIP
    """

    # Defaults, because the base class calls methods that read these before __init__ sets them.
    _hooks: GradientHooks | None = None
    _hook_options: dict[str, Any] | None = None
    _comm_hook: CommHook | None = None  # of a module on a GPU
    _wire: dict[str, Any] | None = None
    _steps: CountedSteps | None = None  # counts the steps of torch's reducer, unless a comm hook does
    _frozen: Sequence[tuple[str, nn.Parameter]] = ()

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        compression: str = "none",
        bucket_cap_mb: float | None = None,
        topk_ratio: float = 0.01,
        topk_momentum: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if bucket_cap_mb is not None:
            kwargs["bucket_cap_mb"] = bucket_cap_mb
        given = bind_arguments(self, module, *args, **kwargs)
        bucket_cap_mb = given.arguments.get("bucket_cap_mb")
        check_reducer_options(
            "DistributedDataParallel",
            compression,
            bucket_cap_mb,
            topk_ratio=topk_ratio,
            topk_momentum=topk_momentum,
        )
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"[smdp] DistributedDataParallel got a {type(module).__name__} in place of a torch.nn.Module."
            )
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        averaged = [each for name, each in module.named_parameters() if name not in ignored]
        if (mesh := mesh_of_slices(averaged)) is not None:
            choose_replicas(given.arguments, mesh)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        synchronizes = given.arguments.pop("init_sync", True)
        if is_on_cpu:
            refuse_what_only_torch_has(given.arguments)
        # smdp compares the parameters first, because its error names the parameter and torch's does not.
        given.arguments["init_sync"] = synchronizes and not is_on_cpu
        options: dict[str, Any] = {
            "compression": compression,
            "bucket_cap_mb": 25 if bucket_cap_mb is None else bucket_cap_mb,
            "topk_ratio": topk_ratio,
            "topk_momentum": topk_momentum,
        }
        if is_on_cpu or compression != "none":
            group = checked_group(given.arguments)
            if is_on_cpu:
                refuse_what_takes_gradients(module, _is_averaged_by_torch)
            if is_on_cpu and not any(parameter.requires_grad for parameter in module.parameters()):
                # torch refuses such a module. Registering no parameters makes the other ranks fail, not hang.
                GradientHooks(group.core, [], lambda: False, **options)
        self._hook_options = options if is_on_cpu else None
        super().__init__(*given.args[1:], **given.kwargs)
        self._is_armed = False
        self._is_visible = True
        self._divides_by_all = True
        watch()
        if self.device_type != "cpu":
            if compression != "none":
                self._wire = {name: value for name, value in options.items() if name != "bucket_cap_mb"}
            self._hook_wire()
            return
        self._make_hooks()
        if synchronizes:
            gives_buffers = self.forward_sync_buffers or kwargs.get("forward_sync_buffers") is not None
            given_by_root = [*self._frozen, *(module.named_buffers() if gives_buffers else ())]
            check_same_state(
                self.process_group,
                [one for one in given_by_root if one[0] not in self.parameters_to_ignore],
            )
            _sync_module_states(
                module=module,
                process_group=self.process_group,
                broadcast_bucket_size=self.broadcast_bucket_size,
                src=0,
                params_and_buffers_to_ignore=self.parameters_to_ignore,
                broadcast_buffers=gives_buffers,
            )

    def _hook_wire(self) -> None:
        """Registers the hook that compresses torch's buckets, or counts its steps if there is none."""
        if self._wire is not None:
            self._comm_hook = comm_hook(process_group=self.process_group, **self._wire)
            super().register_comm_hook(None, self._comm_hook)
        elif self._hook_options is None and isinstance(self.process_group, ProcessGroupSmdp):
            # A hook would cost passes over the buckets, round half precision differently, divide by all
            # ranks in join(), and keep the user from registering one.
            self._steps = CountedSteps(self.process_group.core.name)

    def _count_steps(self, output: Any) -> None:
        """Counts a backward through this output as a step of torch's reducer."""
        steps = self._steps
        if steps is None or not self.require_backward_grad_sync or torch.compiler.is_compiling():
            return
        if any(isinstance(hook, CommHook) for hook, _ in self._comm_hooks):
            return
        size = bytes_of(
            [
                parameter
                for name, parameter in self.module.named_parameters()
                if parameter.requires_grad and name not in self.parameters_to_ignore
            ]
        )
        for tensor in tensors_in(output)[0]:
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: steps.count(size))

    def _check_parameters(self) -> None:
        assert self._hooks is not None
        check_none_is_new(self.module, self._hooks.parameters, self.parameters_to_ignore)

    def _ddp_init_helper(self, *args: Any, **kwargs: Any) -> None:
        """Creates torch's reducer for a GPU, and a stand-in for it on the CPU.

        torch's reducer keeps buffers as large as the model and a hook on every parameter, and takes seconds
        to create for a large model.
        """
        if self._hook_options is None:
            super()._ddp_init_helper(*args, **kwargs)
            return
        self.reducer = StandInReducer(self)
        self._passing_sync_batchnorm_handle(self.module)

    def _make_hooks(self) -> GradientHooks:
        """Returns the gradient hooks, which the first call creates on all ranks.

        A copied model creates its own when it first trains.
        """
        if self._hooks is None:
            assert self._hook_options is not None
            averaged = [
                (name, parameter)
                for name, parameter in self.module.named_parameters()
                if name not in self.parameters_to_ignore
            ]
            self._frozen = [one for one in averaged if not one[1].requires_grad]
            trained = [one for one in averaged if one[1].requires_grad]
            sparse = sparse_parameters(self.module)
            self._hooks = GradientHooks(
                self.process_group.core,
                trained,
                lambda: self._is_armed,
                ended=self._disarm,
                looked_for=self._check_parameters,
                is_static=self.static_graph,
                sparse=[index for index, (_, one) in enumerate(trained) if id(one) in sparse],
                **self._hook_options,
            )
            if (mesh := mesh_of_slices(self.module.parameters())) is not None:
                mesh.abort_also(self, DistributedDataParallel._abort)
            tells_failures(self, DistributedDataParallel._abort)
        return self._hooks

    def _abort(self, reason: str) -> None:
        if self._hooks is not None:
            self._hooks.reducer.abort(reason)

    def __getstate__(self) -> dict[str, Any]:
        """Returns torch's state without the objects that average gradients."""
        others = [one for one in self._comm_hooks if one[0] is not self._comm_hook]
        left = {"_hooks": None, "_comm_hook": None, "_comm_hooks": others, "_frozen": (), "_steps": None}
        return {**super().__getstate__(), **left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores torch's state. A copy compresses gradients like the original."""
        if state["_hook_options"] is None:
            super().__setstate__(state)
        else:  # with static_graph, torch would call its own reducer and logger
            self.logger = None
            super().__setstate__({**state, "static_graph": False})
            self.static_graph = state["static_graph"]
        self._hook_wire()

    def _set_static_graph(self) -> None:
        if self._hook_options is None:
            super()._set_static_graph()
            return
        self.static_graph = True
        if self._hooks is not None:
            self._hooks.repeated.is_static = True

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        if self._hook_options is None:
            super()._set_ddp_runtime_logging_sample_rate(sample_rate)

    def explain(self) -> str:
        """Returns a description of the fusion buffers: how many there are, their sizes, and the reason."""
        if self._hook_options is None:
            return "torch's reducer is in use"
        return self._make_hooks().reducer.explain()

    def rescale_residuals(self, factor: float) -> None:
        """Multiplies the values that compression keeps for later steps by `factor`.

        Call it on all ranks after the loss scale has been multiplied by `factor`; `follow()` does so.

        Raises:
            ValueError: `factor` is not a finite number above 0.
        """
        check_factor(factor)
        if self._comm_hook is not None:
            self._comm_hook.rescale_residuals(factor)
        if self._hook_options is not None:
            self._make_hooks().rescale(factor)

    def residuals(self) -> dict[str, Any]:
        """Returns the values that "int8" and "topk" keep for later steps, for this rank's checkpoint.

        All ranks must call it. With `load_residuals()`, training continues from the checkpoint as if it had
        not been interrupted. The result is up to three times as large as this rank's shard of the gradients.

        Returns:
            A dict of tensors and plain values that `torch.save` can write. It is empty for other kinds of
            compression and for a module on a GPU, whose residuals cannot be saved.
        """
        if self._hook_options is None or self._hook_options["compression"] not in KEEPING_COMPRESSIONS:
            return {}
        return copy_kept(self.process_group.core, self._make_hooks(), self._hook_options)

    def load_residuals(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `residuals()` from the same rank.

        All ranks must call it before the first step.

        Raises:
            ValueError: `state` comes from a run with different ranks, hosts, parameters or compression. The
                model is then left unchanged.
        """
        if self._hook_options is not None and state != {}:
            set_kept(self.process_group.core, self._make_hooks(), self._hook_options, state)

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Calls `rescale_residuals` whenever `scaler.update()` changes the loss scale.

        Copies of this model or of the scaler are not connected.
        """
        follow(scaler, self)

    def gradient_hooks(self, feature: str, *, takes_momentum: bool = False) -> GradientHooks:
        """Returns the gradient hooks, for features that take the gradients over.

        Args:
            feature: The name of the feature, for messages.
            takes_momentum: Whether the feature works with top-k momentum.

        Raises:
            ValueError: The model uses torch's reducer, top-k momentum or sparse gradients.
        """
        if self._hook_options is None:
            raise ValueError(
                f"[smdp] {feature} needs a module on the CPU, but this model uses torch's reducer."
            )
        if self._hook_options["topk_momentum"] and not takes_momentum:
            raise ValueError(
                f"[smdp] {feature} cannot be used with topk_momentum, which needs all gradients at once."
            )
        hooks = self._make_hooks()
        if hooks.sparse.indices:
            raise ValueError(
                f"[smdp] {feature} cannot be used with sparse gradients, which are averaged only at the end"
                " of backward. Set sparse=False in the embeddings."
            )
        return hooks

    @property
    def stage_group(self) -> ProcessGroupSmdp | Any:
        """The ranks that average the gradients, as an `AveragingModel` names them."""
        return self.process_group

    def averaged_gradients(self, feature: str, trained: Collection[nn.Parameter]) -> BackwardGradients:
        """Returns the gradients as an `AveragingModel` does; all of them were chosen at wrapping."""
        hooks = self.gradient_hooks(feature, takes_momentum=True)
        return BackwardGradients([(hooks, self.process_group)], self)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Registers a communication hook with torch's reducer, for a module on a GPU.

        Raises:
            RuntimeError: The module is on the CPU, where `compression` replaces hooks.
        """
        if self._hook_options is not None:
            raise RuntimeError(_NO_COMM_HOOKS)
        super().register_comm_hook(state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        if self._hook_options is not None:
            raise RuntimeError(_NO_COMM_HOOKS)
        super()._register_builtin_comm_hook(comm_hook_type)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Returns the hook with which a rank without inputs takes part in the steps of the other ranks."""
        if self._hook_options is None:
            return super().join_hook(**kwargs)
        hooks = self._make_hooks()
        for taker, feature in ((hooks.shards, "ShardedOptimizer"), (hooks.deferral, "StepInForward")):
            if taker is not None:
                raise ValueError(f"[smdp] join() cannot be used with {feature}. Remove one of them.")
        self._divides_by_all = kwargs.get("divide_by_initial_world_size", True)
        return EmptySteps(self, hooks)

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._hook_options is None:
            return super()._pre_forward(*inputs, **kwargs)
        if self._hooks is None and not (torch.is_grad_enabled() and self.require_backward_grad_sync):
            return inputs, kwargs  # a copy that only evaluates, perhaps on one rank
        hooks = self._make_hooks()
        hooks.begin_forward()
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            check_still_frozen(self._frozen)
        work = Join.notify_join_context(self)
        hooks.scale = 1.0
        if work:
            work.wait()
            if not self._divides_by_all:
                # Turns the mean over all ranks into the mean over the ranks that still have inputs. Each of
                # these contributed a one.
                hooks.scale = self.process_group.size() / work.result()[0].item()
        if self._check_sync_bufs_pre_fwd():
            self._sync_buffers()
        if self._join_config.enable:
            self._check_global_requires_backward_grad_sync(is_joined_rank=False)
        return inputs, kwargs

    def _post_forward(self, output: Any) -> Any:
        if self._hook_options is None:
            output = super()._post_forward(output)
            self._count_steps(output)
            return output
        if self._hooks is None:
            return output
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        if torch.is_grad_enabled():
            self._is_armed = self.require_backward_grad_sync
        if self._is_armed and not torch.compiler.is_compiling():
            # A second backward through this output is averaged as well.
            tensors, is_all = tensors_in(output)
            found = [tensor for tensor in tensors if tensor.grad_fn is not None]
            self._hooks.watch_output(found)
            self._is_visible = is_all and bool(found)
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return output

    def prepare_for_backward(self) -> None:
        """Makes the next backward average gradients, for callers that decide after the forward."""
        self._is_armed = self.require_forward_param_sync = self.require_backward_grad_sync

    def _disarm(self) -> None:
        # If some tensors of the output were not found, only this flag notices a second backward.
        self._is_armed = self._is_armed and not self._is_visible

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if self._hook_options is None:
            return super()._get_ddp_logging_data()  # type: ignore[no-any-return]
        return {"explain": self.explain()}


def _is_averaged_by_torch(part: nn.Module) -> bool:
    return isinstance(part, TorchDistributedDataParallel) and not isinstance(part, DistributedDataParallel)
