"""A communication hook that gives torch's own DistributedDataParallel smdp's wire types.

Annotations are not postponed here: torch reads those of a hook.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from smdp import _core
from smdp.torch.process_group import ProcessGroupSmdp
from smdp.torch.work import HandleWork


class CommHook:
    """What `comm_hook` makes; called by torch's reducer with every bucket."""

    def __init__(self, group: _core.Group, compressor: _core.GradientCompressor, has_state: bool) -> None:
        self._group = group
        self._compressor = compressor
        self._has_state = has_state
        self._counts = True
        self.__name__ = self.__qualname__ = "smdp.torch.comm_hook"  # torch takes a hook for a function

    def __call__(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start averaging a bucket."""
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32 or buffer.device.type != "cpu":
            raise ValueError(
                f"smdp.torch.comm_hook averages float32 gradients on the CPU, got {buffer.dtype} on "
                f"{buffer.device}. Leave the hook out for this model."
            )
        if bucket.index() == 0:
            self._end_step()
        handle = self._compressor.all_reduce(self._group, bucket.index(), buffer.data_ptr(), buffer.numel())
        done: Future[list[Tensor]] = HandleWork((handle,), [buffer]).get_future()
        return done.then(self._averaged)

    def rescale_residuals(self, factor: float) -> None:
        """Tell compression that the loss scale has been multiplied by `factor`."""
        self._end_step()
        self._compressor.rescale(factor)

    def _averaged(self, done: Future[list[Tensor]]) -> Tensor:
        (buffer,) = done.wait()
        if self._has_state and not torch.isfinite(buffer).all():
            self._counts = False
        return buffer

    def _end_step(self) -> None:
        self._compressor.end_step(self._counts)
        self._counts = True


def comm_hook(
    compression: str,
    process_group: dist.ProcessGroup | None = None,
    *,
    topk_ratio: float = 0.01,
    topk_momentum: float = 0.0,
) -> CommHook:
    """Make a hook for `torch.nn.parallel.DistributedDataParallel.register_comm_hook(None, hook)`.

    Args:
        compression: What gradients travel as between hosts: "none", "fp16", "bf16", "int8" or "topk".
        process_group: The group that the model was wrapped with; default: the world. Must be one of smdp.
        topk_ratio: Part of a bucket that "topk" sends.
        topk_momentum: Momentum correction of "topk": the optimizer's momentum, which it must then not apply.

    Raises:
        ValueError: The group is not one of smdp, `compression` is unknown, or a figure is out of range.

    Example:
        >>> ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))  # doctest: +SKIP
    """
    group = process_group or dist.group.WORLD
    if not isinstance(group, ProcessGroupSmdp):
        raise ValueError(
            "smdp.torch.comm_hook needs a group of the backend 'smdp': pass process_group=..., the one that "
            "the model was wrapped with"
        )
    compressor = _core.GradientCompressor(compression, topk_ratio, topk_momentum)
    return CommHook(group.core, compressor, compression in ("int8", "topk"))
