"""Over which axis of the mesh a parameter is cut: each rank along the axis holds another part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh

# In the order in which all ranks reduce over them.
_AXES: tuple[Axis, ...] = ("tp", "rdp", "dp")


@dataclass(frozen=True)
class Cut:
    """How a parameter is cut.

    Whoever cuts parameters has all ranks of the job make the groups of the axis: see `ParallelMesh.make()`.

    Attributes:
        axis: "tp" for slices, "rdp" for shards over the replicas of a slice, "dp" for both at once.
        mesh: Whose axis it is.

    Raises:
        ValueError: Parameters are not cut over such an axis.
    """

    axis: Axis
    mesh: ParallelMesh

    def __post_init__(self) -> None:
        if self.axis not in _AXES:
            raise ValueError(
                f"[smdp] a parameter cannot be cut over axis {self.axis!r}; allowed: {', '.join(_AXES)}"
            )


def mark_cut(parameter: Tensor, cut: Cut) -> None:
    """Notes how a parameter is cut, on every rank along the axis, also where its part is empty."""
    cast("Any", parameter)._smdp_cut = cut


def cut_of(parameter: Tensor) -> Cut | None:
    """Returns what mark_cut() noted; None for a parameter that is whole."""
    return getattr(parameter, "_smdp_cut", None)


def axes_of_cuts(parameters: Iterable[Tensor]) -> tuple[Axis, ...]:
    """Returns the axes over which any of the parameters is cut, in the order of all ranks."""
    found = {cut.axis for cut in map(cut_of, parameters) if cut is not None}
    return tuple(axis for axis in _AXES if axis in found)
