"""`smdistributed.modelparallel.torch.sharded_data_parallel_checkpoint`: reads whole models from shards."""

from __future__ import annotations

from smdp.torch.model_parallel import sharded_data_parallel_checkpoint as _found

get_full_state_dict_from_sharded_data_parallel_checkpoint = (
    _found.get_full_state_dict_from_sharded_data_parallel_checkpoint
)

__all__ = ["get_full_state_dict_from_sharded_data_parallel_checkpoint"]
