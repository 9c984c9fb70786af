"""Steps in `join()` of a rank that has run out of inputs."""

from __future__ import annotations

from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp.torch.data_parallel.gradient_hooks import GradientHooks


class EmptySteps(JoinHook):
    """Takes part in the steps of the other ranks with gradients that count as zero."""

    def __init__(self, ddp: TorchDistributedDataParallel, hooks: GradientHooks) -> None:
        self._ddp = ddp
        self._hooks = hooks

    def main_hook(self) -> None:
        """Takes part in one step of the ranks that still have inputs."""
        self._ddp._check_and_sync_module_buffers()
        wanted = self._ddp._check_global_requires_backward_grad_sync(is_joined_rank=True)
        self._ddp.require_forward_param_sync = wanted
        if wanted:
            self._hooks.reduce_nothing()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Copies the final model to this rank once all ranks have run out of inputs."""
        self._ddp._sync_final_model(is_last_joiner)
