"""`smdistributed.modelparallel.torch.sharded_data_parallel_checkpoint`: the names of `smdp.torch.model_parallel.sharded_data_parallel_checkpoint`."""

from __future__ import annotations

from smdp.torch.model_parallel.checkpoints.sharded_data_parallel_checkpoint import (
    get_full_state_dict_from_sharded_data_parallel_checkpoint,
)

__all__ = ["get_full_state_dict_from_sharded_data_parallel_checkpoint"]
