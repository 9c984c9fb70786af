"""`smddpcommon` and `herringcommon`: sums by address, as benchmarks of SMDDP make them."""

from __future__ import annotations

from dataclasses import dataclass

import smdp
from smdp import _core
from smdp._buffers import DType

herringFloat16 = int(DType.FLOAT16)
herringFloat32 = int(DType.FLOAT32)


@dataclass
class Task:
    """A sum in flight."""

    request: _core.Handle


def setBucketSize(bytes: int) -> None:
    """Accepted; the cost model sizes buffers."""


def allReduce(
    in_ptr: int, out_ptr: int, dtype: int, numel: int, param_index: int, num_params: int, task_id: int
) -> Task:
    """Sum `numel` elements at an address over all ranks.

    Args:
        in_ptr: Address of the input.
        out_ptr: Address of the result; may be the same.
        dtype: herringFloat16 or herringFloat32.
        numel: Number of elements.
        param_index: Not used, nor are num_params and task_id; ranks must make the same calls in order.
        num_params: See param_index.
        task_id: See param_index.
    """
    return Task(_group().all_reduce(in_ptr, out_ptr, [numel], dtype, int(smdp.SUM), 1.0, -1.0, True))


def wait(request: _core.Handle) -> None:
    """Return once the sum is there."""
    request.wait()


def _group() -> _core.Group:
    import sys

    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        core: _core.Group = dist.distributed_c10d._get_default_group().core
        return core
    return smdp.world().core
