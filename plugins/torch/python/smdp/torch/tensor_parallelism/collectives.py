"""The collectives of tensor parallelism, as operators of torch.library.

Operators have fake kernels. Pipelines can thus predict the shapes of a layer that another rank computes, and
torch.compile can trace a layer, without communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceScatterOptions

from smdp import MismatchError
from smdp.torch.tensor_parallelism.tensor_axis import axis_of

_library = torch.library.Library("smdp", "FRAGMENT")
_library.define("tp_sum_(Tensor(a!) tensor, int axis) -> ()")
_library.define("tp_start_sum_(Tensor(a!) tensor, int axis) -> ()")
_library.define("tp_wait_sum_(Tensor(a!) tensor, int axis) -> ()")
_library.define("tp_summed(Tensor tensor, int axis) -> Tensor")
_library.define("tp_max_(Tensor(a!) tensor, int axis) -> ()")
_library.define("tp_gather(Tensor tensor, int dim, int size, int axis) -> Tensor")
_library.define("tp_scatter_sum(Tensor tensor, int dim, int size, int axis) -> Tensor")
_library.define("tp_exchange(Tensor tensor, int split_dim, int join_dim, int size, int axis) -> Tensor")

# The calling thread runs these, because it waits anyway.
_SUM, _MAX, _GATHER = AllreduceOptions(), AllreduceOptions(), AllgatherOptions()
_SCATTER = ReduceScatterOptions()
_MAX.reduceOp = dist.ReduceOp.MAX
for _options in (_SUM, _MAX, _GATHER, _SCATTER):
    _options.asyncOp = False


def _sum_(tensor: Tensor, axis: int) -> None:
    axis_of(axis).group.allreduce([tensor], _SUM).wait()


# Sums that have been started, by their axis. A thread awaits a sum before it starts the next one.
_started: dict[int, Any] = {}


def _start_sum_(tensor: Tensor, axis: int) -> None:
    _started[axis] = axis_of(axis).group.allreduce([tensor])


def _wait_sum_(tensor: Tensor, axis: int) -> None:
    _started.pop(axis).wait()


def _summed(tensor: Tensor, axis: int) -> Tensor:
    found = tensor.clone(memory_format=torch.contiguous_format)
    _sum_(found, axis)
    return found


def _max_(tensor: Tensor, axis: int) -> None:
    axis_of(axis).group.allreduce([tensor], _MAX).wait()


def _gather(tensor: Tensor, dim: int, size: int, axis: int) -> Tensor:
    tensor = tensor.contiguous()
    found = tensor.new_empty((size, *tensor.shape))
    axis_of(axis).group.all_gather_single(found, tensor, _GATHER).wait()
    return found.movedim(0, dim).flatten(dim, dim + 1)


def _scatter_sum(tensor: Tensor, dim: int, size: int, axis: int) -> Tensor:
    parts = tensor.unflatten(dim, (size, tensor.shape[dim] // size)).movedim(dim, 0).contiguous()
    found = torch.empty_like(parts[0])
    axis_of(axis).group.reduce_scatter_single(found, parts, _SCATTER).wait()
    return found


def _exchange(tensor: Tensor, split_dim: int, join_dim: int, size: int, axis: int) -> Tensor:
    parts = tensor.unflatten(split_dim, (size, tensor.shape[split_dim] // size)).movedim(split_dim, 0)
    parts = parts.contiguous()
    found = torch.empty_like(parts)
    axis_of(axis).group.alltoall_base(found, parts, [], []).wait()
    return found.movedim(0, join_dim).flatten(join_dim, join_dim + 1)


def _same_(tensor: Tensor, axis: int) -> None:
    return None


def _fake_summed(tensor: Tensor, axis: int) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _fake_gather(tensor: Tensor, dim: int, size: int, axis: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = shape[dim] * size
    return tensor.new_empty(shape)


def _fake_scatter_sum(tensor: Tensor, dim: int, size: int, axis: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = shape[dim] // size
    return tensor.new_empty(shape)


def _fake_exchange(tensor: Tensor, split_dim: int, join_dim: int, size: int, axis: int) -> Tensor:
    shape = list(tensor.shape)
    shape[split_dim] = shape[split_dim] // size
    shape[join_dim] = shape[join_dim] * size
    return tensor.new_empty(shape)


def _telling(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a kernel tell the other ranks of errors.

    Replicas, for example, share no slices with this rank, but wait for its gradients.
    """

    def run(*arguments: Any) -> Any:
        try:
            return kernel(*arguments)
        except MismatchError:
            raise  # all ranks have it, and may go on
        except Exception as error:
            axis_of(arguments[-1]).mesh.abort(str(error).removeprefix("[smdp] "))
            raise

    return run


for _name, _kernel, _fake in (
    ("tp_sum_", _sum_, _same_),
    ("tp_start_sum_", _start_sum_, _same_),
    ("tp_wait_sum_", _wait_sum_, _same_),
    ("tp_summed", _summed, _fake_summed),
    ("tp_max_", _max_, _same_),
    ("tp_gather", _gather, _fake_gather),
    ("tp_scatter_sum", _scatter_sum, _fake_scatter_sum),
    ("tp_exchange", _exchange, _fake_exchange),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _telling(_kernel), _key)
    torch.library.register_fake(f"smdp::{_name}", _fake, lib=_library)

# Called directly, because looking an operator up by its attributes takes microseconds.
sum_ = torch.ops.smdp.tp_sum_.default
start_sum_ = torch.ops.smdp.tp_start_sum_.default
wait_sum_ = torch.ops.smdp.tp_wait_sum_.default
summed = torch.ops.smdp.tp_summed.default
max_ = torch.ops.smdp.tp_max_.default
gather = torch.ops.smdp.tp_gather.default
scatter_sum = torch.ops.smdp.tp_scatter_sum.default
exchange = torch.ops.smdp.tp_exchange.default
