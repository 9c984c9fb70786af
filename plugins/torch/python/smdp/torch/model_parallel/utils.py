"""`smp.utils`: helpers of SMP that public scripts import."""

from __future__ import annotations

from torch import Tensor

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.model_parallel.job.ranks import dp_rank, pp_rank, rank, tp_rank

__all__ = ["get_distribution_axis", "rmsg"]


def rmsg(message: object) -> str:
    """Returns a message prefixed with this rank, for logs.

    Raises:
        ValueError: smp.init() has not been called.
    """
    return f"[rank {rank()}: pp_rank {pp_rank()}, tp_rank {tp_rank()}, dp_rank {dp_rank()}] {message}"


def get_distribution_axis(parameter: Tensor) -> int | None:
    """Returns the dimension of which each rank holds a slice, or None if the parameter is whole."""
    cut = cut_of(parameter)
    return None if cut is None or cut.slices is None else cut.slices.dim
