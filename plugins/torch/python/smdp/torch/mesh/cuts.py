"""Records over which axis of the mesh a parameter is cut. Each rank along the axis holds a different part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.mesh.slices import Slices

# All ranks reduce over the axes in this order.
_AXES: tuple[Axis, ...] = ("tp", "rdp", "dp")


@dataclass(frozen=True)
class Cut:
    """The axis over which a parameter is cut.

    Code that cuts parameters must call `ParallelMesh.make()` for the axis on all ranks of the job.

    Attributes:
        axis: "tp" for slices, "rdp" for shards over the replicas of a slice, "dp" for both at once.
        mesh: The mesh of the axis.
        slices: The part of the whole parameter that this rank holds, if its coordinates are known.
        is_counted: Whether this rank's part counts in the norm, or whether each range of `slices` does. A
            range does not where another rank holds the same, for example a key head that several ranks need.

    Raises:
        ValueError: `axis` is none of these.
    """

    axis: Axis
    mesh: ParallelMesh
    slices: Slices | None = None
    is_counted: bool | tuple[bool, ...] = True

    def __post_init__(self) -> None:
        if self.axis not in _AXES:
            raise ValueError(
                f"[smdp] a parameter cannot be cut over axis {self.axis!r}. Use one of: {', '.join(_AXES)}."
            )
        if isinstance(self.is_counted, tuple) and len(set(self.is_counted)) == 1:
            object.__setattr__(self, "is_counted", self.is_counted[0])

    def counted(self, part: Tensor) -> Tensor:
        """Returns what counts in the norm of a tensor with the shape of this rank's part; it may be empty."""
        if isinstance(self.is_counted, bool):
            return part if self.is_counted else torch.empty(0, dtype=part.dtype, device=part.device)
        assert self.slices is not None
        dim, lengths = self.slices.dim, [end - begin for begin, end in self.slices.ranges]
        ranges = zip(part.split(lengths, dim), self.is_counted, strict=True)
        return torch.cat([each for each, is_counted in ranges if is_counted], dim)

    def counted_slices(self) -> Slices | None:
        """Returns the ranges that count, or None if there are none or their coordinates are unknown."""
        if self.slices is None or isinstance(self.is_counted, bool):
            return self.slices if self.is_counted else None
        ranges = zip(self.slices.ranges, self.is_counted, strict=True)
        kept = tuple(each for each, is_counted in ranges if is_counted)
        return Slices(self.slices.dim, kept, self.slices.shape)


def mark_cut(parameter: Tensor, cut: Cut) -> None:
    """Records how a parameter is cut. Every rank along the axis calls it, even if its part is empty."""
    cast("Any", parameter)._smdp_cut = cut


def cut_of(parameter: Tensor) -> Cut | None:
    """Returns the Cut recorded by mark_cut(), or None if the parameter is not cut."""
    return getattr(parameter, "_smdp_cut", None)


def mesh_of_slices(parameters: Iterable[Tensor]) -> ParallelMesh | None:
    """Returns the mesh over whose tensor axis any of the parameters is cut, or None."""
    cuts = filter(None, map(cut_of, parameters))
    return next((cut.mesh for cut in cuts if cut.axis == "tp"), None)


def axes_of_cuts(parameters: Iterable[Tensor]) -> tuple[Axis, ...]:
    """Returns the axes over which any of the parameters is cut, in the order used by all ranks."""
    found = {cut.axis for cut in map(cut_of, parameters) if cut is not None}
    return tuple(axis for axis in _AXES if axis in found)
