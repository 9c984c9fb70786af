"""`smp.utils`: helpers of SMP that public scripts import."""

from __future__ import annotations

from smdp.torch.model_parallel.job.ranks import dp_rank, pp_rank, rank, tp_rank
from smdp.torch.model_parallel.unsupported_names import LaterModule

__all__ = ["rmsg"]


def rmsg(message: object) -> str:
    """Returns a message prefixed with this rank, for logs.

    Raises:
        ValueError: smp.init() has not been called.
    """
    return f"[rank {rank()}: pp_rank {pp_rank()}, tp_rank {tp_rank()}, dp_rank {dp_rank()}] {message}"


__getattr__ = LaterModule("utils").__getattr__
