"""`smdistributed.dataparallel.torch.parallel.distributed`: the model wrapper of SMDDP's old API."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import smdp.torch


class DistributedDataParallel(smdp.torch.DistributedDataParallel):
    """smdp.torch.DistributedDataParallel with SMDDP's arguments. The wrapped model may move to another GPU.

    Args:
        module: The model.
        device_ids: Not used; the model stays where it is.
        output_device: Not used.
        broadcast_buffers: Same as in torch's DDP.
        process_group: None or group.WORLD.
        bucket_cap_mb: Maximum size of a fusion buffer in MiB; None means 25.
        gradient_accumulation_steps: Not used. To skip communication while accumulating, use `no_sync()`.
        **options: Same as in torch's DDP: find_unused_parameters, gradient_as_bucket_view.

    Raises:
        RuntimeError: init_process_group() was not called.
    """

    _given: dict[str, Any] | None = None  # the arguments, set once the model is wrapped

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        gradient_accumulation_steps: int | None = None,
        **options: Any,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                "[smdp] DistributedDataParallel was created before init_process_group(). Call"
                " smdistributed.dataparallel.torch.distributed.init_process_group() first."
            )
        # torch 2.13 warns about the argument whatever its value is.
        if not broadcast_buffers:
            options["broadcast_buffers"] = False
        given = {"process_group": process_group, "bucket_cap_mb": bucket_cap_mb, **options}
        super().__init__(module, **given)
        self._given = given

    def _apply(self, fn: Any, recurse: bool = True) -> DistributedDataParallel:
        before = self._devices()
        super()._apply(fn, recurse)
        if self._given is not None and self.device_type != "cpu" and self._devices() != before:
            # SMDDP's examples wrap the model on the first GPU and then move it to the rank's own GPU. torch's
            # reducer would stay on the first. Without init_sync, other ranks need not move theirs.
            given, self._given = self._given, None
            is_training = bool(vars(self)["training"])
            super().__init__(self.module, **{**given, "init_sync": False})
            self._given, self.training = given, is_training
        return self

    def _devices(self) -> set[torch.device]:
        return {parameter.device for parameter in self.module.parameters()}
