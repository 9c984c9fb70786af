"""Modules on the CPU that smdp's class takes for modules on a GPU, where torch's own reducer is at work."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smdp.torch


def on_a_device(
    module: nn.Module, compression: str = "none", **more: Any
) -> smdp.torch.DistributedDataParallel:
    """Wraps a module as if it were on a GPU."""

    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        self._hook_options = None  # so that torch's reducer is made
        original(self, *args, **kwargs)
        self.device_type = "a device"

    original, DistributedDataParallel.__init__ = DistributedDataParallel.__init__, init
    try:
        return smdp.torch.DistributedDataParallel(module, compression=compression, topk_ratio=0.2, **more)
    finally:
        DistributedDataParallel.__init__ = original
