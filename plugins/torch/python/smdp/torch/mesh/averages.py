"""Records over which axis of the mesh the gradient of a parameter is averaged."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from torch import Tensor

Average: TypeAlias = Literal["rdp", "dp"]


def mark_average(parameter: Tensor, axis: Average) -> None:
    """Records the axis: "rdp" if the ranks of a tensor axis have the same gradient or slices, else "dp"."""
    cast("Any", parameter)._smdp_average = axis


def average_of(parameter: Tensor, default: Average = "rdp") -> Average:
    """Returns the axis that mark_average() has recorded."""
    return getattr(parameter, "_smdp_average", default)
