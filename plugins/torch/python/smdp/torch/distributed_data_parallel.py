"""`torch.nn.parallel.DistributedDataParallel` on the core's gradient reducer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp.torch.gradient_hooks import GradientHooks
from smdp.torch.input_wait import watch
from smdp.torch.process_group import ProcessGroupSmdp


class DistributedDataParallel(TorchDistributedDataParallel):
    """Data parallel training: averages gradients over the ranks of a group while backward runs.

    A subclass of torch's class with the same arguments, state dict, `no_sync` and `join`. Without compression
    it trains to the same bits as torch's own over smdp. Parameters that some ranks do not use need no option.
    Modules on a GPU are left to torch's own reducer, whose all_reduce smdp carries out.

    Args:
        module: The module, the same on all ranks.
        *args: As torch's, after `module`.
        compression: What float32 gradients travel as between hosts: "none", "fp16", "bf16", "int8" or "topk".
            Within a host nothing is compressed.
        bucket_cap_mb: Most MiB of a fusion buffer, default 25; the cost model may choose less.
        topk_ratio: Part of the gradient that "topk" sends.
        topk_momentum: Momentum correction of "topk": the optimizer's momentum, which it must then not apply.
        **kwargs: As torch's. `find_unused_parameters`, `static_graph`, `gradient_as_bucket_view` and
            `batched_grad_copy` are accepted and not needed.

    Raises:
        ValueError: The group is not one of smdp, or an argument is not supported.
        smdp.MismatchError: The ranks' modules differ; the message names the first difference.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model, compression="bf16")  # doctest: +SKIP
    """

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
        if (
            kwargs.get("mixed_precision") is not None
            or kwargs.get("delay_all_reduce_named_params") is not None
        ):
            raise ValueError(
                "smdp.torch.DistributedDataParallel takes neither mixed_precision nor "
                "delay_all_reduce_named_params; use torch.nn.parallel.DistributedDataParallel for those"
            )
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb is {bucket_cap_mb}; it must be above 0")
        super().__init__(module, *args, bucket_cap_mb=bucket_cap_mb, **kwargs)
        self._hooks: GradientHooks | None = None
        self._is_armed = False
        self._divides_by_all = True
        if self.device_type != "cpu":
            if compression != "none":
                raise ValueError(
                    f"compression={compression!r} needs a module on the CPU, got one on {self.device_type}"
                )
            return
        group = self.process_group
        if not isinstance(group, ProcessGroupSmdp):
            raise ValueError(
                f"smdp.torch.DistributedDataParallel needs a group of the backend 'smdp', got "
                f"{dist.get_backend(group)!r}: pass process_group=dist.new_group(backend='smdp')"
            )
        watch()
        # torch's reducer keeps buffers as large as the model and hooks on every parameter.
        self.logger = None
        self.reducer = None
        self._hooks = GradientHooks(
            group.core,
            [
                (name, parameter)
                for name, parameter in module.named_parameters()
                if parameter.requires_grad and name not in self.parameters_to_ignore
            ],
            lambda: self._is_armed,
            compression=compression,
            bucket_cap_mb=25 if bucket_cap_mb is None else bucket_cap_mb,
            topk_ratio=topk_ratio,
            topk_momentum=topk_momentum,
        )

    def explain(self) -> str:
        """Say which fusion buffers there are, how large, and why."""
        return "torch's reducer is in use" if self._hooks is None else self._hooks.reducer.explain()

    def rescale_residuals(self, factor: float) -> None:
        """Tell compression that the loss scale has been multiplied by `factor`."""
        if self._hooks is not None:
            self._hooks.reducer.rescale(factor)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Refuse on the CPU: `compression` takes the place of hooks.

        Raises:
            RuntimeError: The module is on the CPU.
        """
        if self._hooks is not None:
            raise RuntimeError(
                "smdp.torch.DistributedDataParallel takes no comm hooks: use compression=, or hooks with "
                "torch.nn.parallel.DistributedDataParallel on smdp"
            )
        super().register_comm_hook(state, hook)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Give what stands in for this module when a rank has run out of inputs."""
        if self._hooks is None:
            return super().join_hook(**kwargs)
        self._divides_by_all = kwargs.get("divide_by_initial_world_size", True)
        return _JoinHook(self, self._hooks)

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._hooks is None:
            return super()._pre_forward(*inputs, **kwargs)
        self._hooks.check()
        work = Join.notify_join_context(self)
        self._hooks.scale = 1.0
        if work:
            work.wait()
            if not self._divides_by_all:
                # The mean over all ranks becomes that over those which still have inputs: each gave a one.
                self._hooks.scale = self.process_group.size() / work.result()[0].item()
        if self._check_sync_bufs_pre_fwd():
            self._sync_buffers()
        if self._join_config.enable:
            self._check_global_requires_backward_grad_sync(is_joined_rank=False)
        return inputs, kwargs

    def _post_forward(self, output: Any) -> Any:
        if self._hooks is None:
            return super()._post_forward(output)
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        if torch.is_grad_enabled():
            self._is_armed = self.require_backward_grad_sync
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        return output

    def prepare_for_backward(self) -> None:
        """Say that the next backward is to average gradients, where the forward could not know it."""
        self._is_armed = self.require_forward_param_sync = self.require_backward_grad_sync

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if self._hooks is None:
            return super()._get_ddp_logging_data()  # type: ignore[no-any-return]
        return {"explain": self.explain()}


class _JoinHook(JoinHook):
    """Takes part in the others' steps with gradients that count as zero."""

    def __init__(self, ddp: DistributedDataParallel, hooks: GradientHooks) -> None:
        self._ddp = ddp
        self._hooks = hooks

    def main_hook(self) -> None:
        self._ddp._check_and_sync_module_buffers()
        wanted = self._ddp._check_global_requires_backward_grad_sync(is_joined_rank=True)
        self._ddp.require_forward_param_sync = wanted
        if wanted:
            self._hooks.reduce_nothing()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._ddp._sync_final_model(is_last_joiner)
