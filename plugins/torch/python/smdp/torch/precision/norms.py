"""The norm of gradients that are distributed over ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from smdp.torch.mesh.cuts import axes_of_cuts, cut_of
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.sharding.master_parameters import LOW
from smdp.torch.sharding.shard_owners import wide_norm
from smdp.torch.sharding.sharded_gradient import ShardedGradient


class NormTable:
    """The gradient norm of each parameter of a model, filled in by the ranks that hold it.

    A whole parameter counts once, and the parts of a cut parameter are joined.

    Args:
        size: The number of parameters of the whole model.
        order: The order of the norm.
        device: The device of the table.
        is_wide: Whether the norms of 16-bit gradients are computed with at least 32 bits.
    """

    def __init__(self, size: int, order: float, device: torch.device, *, is_wide: bool = False) -> None:
        self._order = order
        self._is_wide = is_wide
        # Norms, and whether they are known. A rank without a norm leaves zeros, so sums over ranks are exact.
        self._found = torch.zeros(2, size, device=device, dtype=torch.float64)
        self._dtype = torch.float32

    def enter(self, place: int, parameter: Tensor) -> None:
        """Enters the norm of this rank's gradient of a parameter, or of its part, if that counts."""
        gradient, cut = parameter.grad, cut_of(parameter)
        if gradient is not None and cut is not None:
            # A gradient in shards leaves out the ranges that do not count itself.
            is_in_shards = isinstance(gradient, ShardedGradient) and cut.is_counted is not False
            gradient = gradient if is_in_shards else cut.counted(gradient)
        if gradient is None or gradient.numel() == 0:
            return
        norm = self._norm(gradient)
        self._dtype = torch.promote_types(self._dtype, norm.dtype)
        self._found[0, place] = norm.double()
        self._found[1, place] = 1

    def join_parts(self, held: Mapping[int, Tensor], mesh: ParallelMesh) -> None:
        """Combines the norms of parts into norms of parameters. All ranks that hold the same stage call it.

        Args:
            held: This rank's parameters by their place in the table, including those without a gradient.
            mesh: The mesh over whose axes they are cut.
        """
        for axis in axes_of_cuts(held.values()):
            places = [place for place, each in held.items() if (cut := cut_of(each)) and cut.axis == axis]
            self._found[:, places] = self._joined(self._found[:, places], mesh, axis)

    def add_stages(self, mesh: ParallelMesh) -> None:
        """Adds the norms that the other ranks of the pipeline have entered. Collective over the pipeline."""
        dist.all_reduce(self._found, group=mesh.step_group("pp"))

    def total(self) -> Tensor:
        """Returns the norm of all parameters."""
        norms = self._found[0][self._found[1] > 0].to(self._dtype)
        return torch.linalg.vector_norm(norms, self._order) if norms.numel() else norms.new_zeros(())

    def _norm(self, gradient: Tensor) -> Tensor:
        if not self._is_wide or gradient.dtype not in LOW:
            return torch.linalg.vector_norm(gradient, self._order)
        if isinstance(gradient, ShardedGradient):
            return torch.linalg.vector_norm(gradient, self._order, dtype=torch.float64)
        return wide_norm(gradient, self._order)

    def _joined(self, parts: Tensor, mesh: ParallelMesh, axis: Axis) -> Tensor:
        """Returns the norms over the ranks along an axis, and whether each has any part."""
        ranks = mesh.ranks(axis)
        told = torch.zeros(len(ranks), *parts.shape, device=parts.device, dtype=parts.dtype)
        told[ranks.index(mesh.rank)] = parts
        dist.all_reduce(told, group=mesh.step_group(axis))
        norms, is_there = told.unbind(1)
        # What no rank has entered must not change the norm of the other parts.
        absent = norms.new_full((), math.inf if self._order < 0 else 0.0)
        joined = torch.linalg.vector_norm(norms.where(is_there > 0, absent), self._order, 0)
        return torch.stack([joined, is_there.amax(0)])
