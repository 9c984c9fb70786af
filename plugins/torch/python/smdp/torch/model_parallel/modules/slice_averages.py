"""Averages gradients over a tensor-parallel group, after those of shards were averaged over RDP_GROUP.

The ranks of a tensor-parallel group have samples of their own. Slices see the samples of all of them, but a
whole parameter of a module that is not distributed sees only those of its rank. Its gradient must be averaged
over DP_GROUP, which is RDP_GROUP times the tensor-parallel group. Where parameters are sharded over
RDP_GROUP, these ranks have the same shards, whose gradients they average here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor

from smdp.torch.data_parallel.output_tensors import tensors_in
from smdp.torch.mesh.averages import Average, average_of, mark_average
from smdp.torch.mesh.parallel_mesh import ParallelMesh


def average_later(parameter: nn.Parameter) -> None:
    """Records that a gradient is averaged over RDP_GROUP first, and then by a `SliceAverages`."""
    mark_average(parameter, "rdp")
    cast("Any", parameter)._smp_is_averaged_later = True


def class_of(parameter: Tensor) -> Average:
    """Returns over which group the gradient of a parameter is averaged: RDP_GROUP, or DP_GROUP."""
    return "dp" if getattr(parameter, "_smp_is_averaged_later", False) else average_of(parameter, "dp")


class SliceAverages:
    """The second average, which is made at the end of a step function, or of a backward outside of one.

    All ranks start with the values of the first rank of their tensor-parallel group. All ranks of the job
    create it together.

    Args:
        named: This rank's parameters by name.
        buffers: This rank's buffers.
        mesh: The ranks and groups.
        has_own_samples: Whether the ranks of a tensor-parallel group have samples of their own.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        buffers: Iterable[Tensor],
        mesh: ParallelMesh,
        *,
        has_own_samples: bool,
    ) -> None:
        self._mesh = mesh
        found = [(name, each) for name, each in named if getattr(each, "_smp_is_averaged_later", False)]
        group = mesh.group("tp")
        with torch.no_grad():
            for value in (*(each for _, each in found), *buffers):
                dist.broadcast(_own_part(value.detach()), group=group, group_src=0)
        self._parameters = found if has_own_samples else []
        self._is_pending = False
        self._task = -1  # the backward whose end is awaited

    def expect(self) -> None:
        """Notes a forward, after which backward may compute gradients."""
        self._is_pending = True

    def watch(self, output: Any) -> None:
        """Averages at the end of every backward that passes the model's output, before clipping reads it."""
        for tensor in tensors_in(output)[0] if self._parameters else []:
            if tensor.grad_fn is not None:
                tensor.register_hook(self._await_end)

    def average(self) -> None:
        """Averages gradients if there was a forward since the last call. Collective.

        Gradients that are averages already stay as they are.

        Raises:
            RuntimeError: Only some ranks of the group have a gradient of a parameter.
        """
        if not self._is_pending or not self._parameters:
            return
        self._is_pending = False
        group = self._mesh.step_group("tp")
        has = torch.tensor([each.grad is not None for _, each in self._parameters], dtype=torch.uint8)
        told = torch.stack([has, 1 - has])
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
        for (name, _), (is_there, is_absent) in zip(self._parameters, told.T.tolist(), strict=True):
            if is_there and is_absent:
                raise RuntimeError(
                    f"[smdp] parameter {name!r} has a gradient on some ranks of a tensor-parallel group only,"
                    " so it cannot be averaged over them. Use all parameters in every step."
                )
        found: dict[torch.dtype, list[Tensor]] = {}
        for _, parameter in self._parameters:
            if parameter.grad is not None:
                own = _own_part(parameter.grad)
                found.setdefault(own.dtype, []).append(own)
        with torch.no_grad():
            for pieces in found.values():
                flat = torch.cat([each.reshape(-1) for each in pieces])
                dist.all_reduce(flat, dist.ReduceOp.AVG, group=group)
                parts = flat.split([each.numel() for each in pieces])
                for each, part in zip(pieces, parts, strict=True):
                    each.copy_(part.view_as(each))

    def _await_end(self, gradient: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task in (-1, self._task):
            return
        self._task = task
        # Callbacks run in the order of their registration. This one is the first, and the average over
        # RDP_GROUP must have ended, so it registers another one.
        queue = Variable._execution_engine.queue_callback
        queue(lambda: queue(self._end))

    def _end(self) -> None:
        self._task = -1
        self._is_pending = True
        self.average()


def _own_part(value: Tensor) -> Tensor:
    return value._local_tensor if isinstance(value, DTensor) else value
