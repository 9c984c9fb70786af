"""`torch.nn.parallel.DistributedDataParallel` on the core's gradient reducer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook
from torch.distributed.utils import _sync_module_states
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp.torch.data_parallel.comm_hook import CommHook, comm_hook
from smdp.torch.data_parallel.counted_steps import CountedSteps, bytes_of
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.input_wait import watch
from smdp.torch.data_parallel.join_hook import EmptySteps
from smdp.torch.data_parallel.kept_gradients import copy_kept, set_kept
from smdp.torch.data_parallel.loss_scale import follow
from smdp.torch.data_parallel.output_tensors import tensors_in
from smdp.torch.data_parallel.reducer_options import check_factor, check_reducer_options
from smdp.torch.data_parallel.same_parameters import check_none_is_new, check_still_frozen
from smdp.torch.data_parallel.same_state import check_same_state
from smdp.torch.data_parallel.sparse_gradients import sparse_parameters
from smdp.torch.data_parallel.stand_in_reducer import StandInReducer
from smdp.torch.data_parallel.supported_modules import (
    bind_arguments,
    checked_group,
    refuse_what_only_torch_has,
    refuse_what_takes_gradients,
)
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_NO_COMM_HOOKS = (
    "smdp.torch.DistributedDataParallel takes no comm hooks: use compression=, or hooks with "
    "torch.nn.parallel.DistributedDataParallel on smdp"
)


class DistributedDataParallel(TorchDistributedDataParallel):
    """Data parallel training: averages gradients over the ranks of a group while backward runs.

    A subclass of torch's class with the same arguments, state dict, `no_sync` and `join`. Without compression
    it trains to the same bits as torch's own over smdp; the page on data parallel training has the limits of
    that. Parameters that some ranks do not use need no option.
    Modules on a GPU are left to torch's own reducer, which fuses on the device; its buckets travel by smdp,
    with `compression` by `comm_hook`.

    Args:
        module: The module, the same on all ranks.
        *args: As torch's, after `module`.
        compression: What float32 gradients travel as between hosts: "none", "fp16", "bf16", "int8" or "topk".
            Within a host nothing is compressed.
        bucket_cap_mb: Most MiB of a fusion buffer, default 25; the cost model may choose less.
        topk_ratio: Part of the gradient that "topk" sends.
        topk_momentum: Momentum correction of "topk": the optimizer's momentum, which it must then not apply.
        **kwargs: As torch's. `find_unused_parameters`, `gradient_as_bucket_view` and `batched_grad_copy` are
            accepted and not needed; `static_graph` is, where parameters get their gradients several times in
            a backward, as by reentrant checkpoints.

    Raises:
        ValueError: The group is not one of smdp (of a module on a GPU without compression it may be any), or
            an argument is not supported.
        smdp.MismatchError: The ranks' modules differ; the message names the first difference.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model, compression="bf16")  # doctest: +SKIP
    """

    # For what the base calls before they are set.
    _hooks: GradientHooks | None = None
    _hook_options: dict[str, Any] | None = None
    _comm_hook: CommHook | None = None  # of a module on a GPU
    _wire: dict[str, Any] | None = None
    _steps: CountedSteps | None = None  # of torch's reducer, where no hook counts them
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
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        synchronises = given.arguments.pop("init_sync", True)
        if is_on_cpu:
            refuse_what_only_torch_has(given.arguments)
        # Ranks compare lists of named parameters first: what torch says of shapes names none.
        given.arguments["init_sync"] = synchronises and not is_on_cpu
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
                # torch refuses it; ranks that have something to train must hear of it, and not wait.
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
        if synchronises:
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
        """Have the buckets of torch's reducer compressed, and its steps counted."""
        if self._wire is not None:
            self._comm_hook = comm_hook(process_group=self.process_group, **self._wire)
            super().register_comm_hook(None, self._comm_hook)
        elif self._hook_options is None and isinstance(self.process_group, ProcessGroupSmdp):
            # No hook: it would add passes over buckets, round means of half precision elsewhere, divide
            # by all ranks in join(), too, and be the only one that the user could have.
            self._steps = CountedSteps(self.process_group.core.name)

    def _count_steps(self, output: Any) -> None:
        """Have a backward through this output counted as a step of torch's reducer."""
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
        """Makes torch's reducer; on the CPU only what stands in for it.

        torch's keeps buffers as large as the model and hooks on every parameter. Where there are many, making
        it takes seconds.
        """
        if self._hook_options is None:
            super()._ddp_init_helper(*args, **kwargs)
            return
        self.reducer = StandInReducer(self)
        self._passing_sync_batchnorm_handle(self.module)

    def _make_hooks(self) -> GradientHooks:
        """Builds the gradient reducer. All ranks call it; a copy of a model does when it first trains."""
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
        return self._hooks

    def __getstate__(self) -> dict[str, Any]:
        """As torch's; what averages gradients stays behind."""
        others = [one for one in self._comm_hooks if one[0] is not self._comm_hook]
        left = {"_hooks": None, "_comm_hook": None, "_comm_hooks": others, "_frozen": (), "_steps": None}
        return {**super().__getstate__(), **left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As torch's; a copy compresses as the original does."""
        if state["_hook_options"] is None:
            super().__setstate__(state)
        else:  # where the graph is static, torch tells its own reducer and logger
            self.logger = None
            super().__setstate__({**state, "static_graph": False})
            self.static_graph = state["static_graph"]
        self._hook_wire()

    def _set_static_graph(self) -> None:
        """As torch's."""
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
        """Say which fusion buffers there are, how large, and why."""
        if self._hook_options is None:
            return "torch's reducer is in use"
        return self._make_hooks().reducer.explain()

    def rescale_residuals(self, factor: float) -> None:
        """Tell compression that the loss scale has been multiplied by `factor`.

        Raises:
            ValueError: It is not a number above 0.
        """
        check_factor(factor)
        if self._comm_hook is not None:
            self._comm_hook.rescale_residuals(factor)
        if self._hook_options is not None:
            self._make_hooks().rescale(factor)

    def residuals(self) -> dict[str, Any]:
        """Give what "int8" and "topk" keep for later steps, for a checkpoint of this rank; all ranks call it.

        With it, training goes on from the checkpoint as if it had not been interrupted. It is up to three
        times as large as this rank's part of the gradients.

        Returns:
            Tensors and plain values, which `torch.save` writes; empty where nothing is ever kept, and of a
            module on a GPU, whose residuals stay behind.
        """
        if self._hook_options is None or self._hook_options["compression"] not in ("int8", "topk"):
            return {}
        return copy_kept(self.process_group.core, self._make_hooks(), self._hook_options)

    def load_residuals(self, state: Mapping[str, Any]) -> None:
        """Take what `residuals()` gave on the same rank, before the first step; all ranks call it.

        Raises:
            ValueError: It is of other ranks, hosts, parameters or compression. Nothing is changed then.
        """
        if self._hook_options is not None and state != {}:
            set_kept(self.process_group.core, self._make_hooks(), self._hook_options, state)

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Have `rescale_residuals` called whenever a loss scaler's `update()` changes its scale.

        Neither a copy of this model nor one of the scaler follows.
        """
        follow(scaler, self)

    def gradient_hooks(self) -> GradientHooks:
        """Returns what averages the gradients, for code that does not wait for them at the end of backward.

        Raises:
            ValueError: Torch's reducer is in use, or the means need all gradients of the model.
        """
        if self._hook_options is None:
            raise ValueError(
                "[smdp] StepInForward needs a module on the CPU; torch's reducer is in use here."
            )
        if self._hook_options["topk_momentum"]:
            raise ValueError(
                "[smdp] StepInForward cannot be used with topk_momentum, which needs all gradients."
            )
        hooks = self._make_hooks()
        if hooks.sparse.indices:
            raise ValueError(
                "[smdp] StepInForward cannot be used with sparse gradients, which need all gradients. Set"
                " sparse=False."
            )
        return hooks

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Refuse on the CPU: `compression` takes the place of hooks.

        Raises:
            RuntimeError: The module is on the CPU.
        """
        if self._hook_options is not None:
            raise RuntimeError(_NO_COMM_HOOKS)
        super().register_comm_hook(state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        if self._hook_options is not None:
            raise RuntimeError(_NO_COMM_HOOKS)
        super()._register_builtin_comm_hook(comm_hook_type)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Give what stands in for this module when a rank has run out of inputs."""
        if self._hook_options is None:
            return super().join_hook(**kwargs)
        if self._make_hooks().deferral is not None:
            raise ValueError("[smdp] join() cannot be used with StepInForward: leave one of them out.")
        self._divides_by_all = kwargs.get("divide_by_initial_world_size", True)
        return EmptySteps(self, self._make_hooks())

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._hook_options is None:
            return super()._pre_forward(*inputs, **kwargs)
        if self._hooks is None and not (torch.is_grad_enabled() and self.require_backward_grad_sync):
            return inputs, kwargs  # a copy that only looks at things, perhaps on one rank
        hooks = self._make_hooks()
        hooks.begin_forward()
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            check_still_frozen(self._frozen)
        work = Join.notify_join_context(self)
        hooks.scale = 1.0
        if work:
            work.wait()
            if not self._divides_by_all:
                # The mean over all ranks becomes that over those which still have inputs: each gave a one.
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
            # A second backward through this output counts, too; one through the module alone does not.
            tensors, is_all = tensors_in(output)
            found = [tensor for tensor in tensors if tensor.grad_fn is not None]
            self._hooks.watch_output(found)
            self._is_visible = is_all and bool(found)
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return output

    def prepare_for_backward(self) -> None:
        """Say that the next backward is to average gradients, where the forward could not know it."""
        self._is_armed = self.require_forward_param_sync = self.require_backward_grad_sync

    def _disarm(self) -> None:
        # Nobody tells of a second backward where not all tensors of the output were found.
        self._is_armed = self._is_armed and not self._is_visible

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if self._hook_options is None:
            return super()._get_ddp_logging_data()  # type: ignore[no-any-return]
        return {"explain": self.explain()}


def _is_averaged_by_torch(part: nn.Module) -> bool:
    return isinstance(part, TorchDistributedDataParallel) and not isinstance(part, DistributedDataParallel)
