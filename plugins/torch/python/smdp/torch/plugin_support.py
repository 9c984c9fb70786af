"""The names that other plugins and compat use beyond the public ones. They import nothing else of smdp.torch.

A name loads its module on first use, so data parallelism does not load pipelines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smdp.torch.process_group._dynamo import hide_package

if TYPE_CHECKING:
    from smdp.torch.checkpoints import checkpoint as checkpoint
    from smdp.torch.data_parallel.distributed_data_parallel import (
        DistributedDataParallel as DistributedDataParallel,
    )
    from smdp.torch.data_parallel.gradient_hooks import GradientHooks as GradientHooks
    from smdp.torch.data_parallel.input_wait import uncounted as uncounted
    from smdp.torch.data_parallel.input_wait import unwatch as unwatch
    from smdp.torch.data_parallel.input_wait import watch as watch
    from smdp.torch.data_parallel.reducer_options import check_reducer_options as check_reducer_options
    from smdp.torch.data_parallel.sparse_gradients import SparseGradients as SparseGradients
    from smdp.torch.data_parallel.sparse_gradients import sparse_on_any_rank as sparse_on_any_rank
    from smdp.torch.data_parallel.sparse_gradients import stand_in_like as stand_in_like
    from smdp.torch.data_parallel.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from smdp.torch.mesh.agreement import on_every_rank as on_every_rank
    from smdp.torch.mesh.cuts import mesh_of_slices as mesh_of_slices
    from smdp.torch.offload.offload_activations import is_offloaded as is_offloaded
    from smdp.torch.offload.offload_activations import offload_activations as offload_activations
    from smdp.torch.offload.target import target_of as target_of
    from smdp.torch.pipelining.engine.same_batch import check_same_batch as check_same_batch
    from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule as PipelinedModule
    from smdp.torch.pipelining.pipelined.pipelining import pipeline_of as pipeline_of
    from smdp.torch.pipelining.pipelined.split_over_ranks import SplitOptions as SplitOptions
    from smdp.torch.pipelining.tensors.containers import map_tensors as map_tensors
    from smdp.torch.pipelining.tensors.random_streams import KeptState as KeptState
    from smdp.torch.pipelining.tensors.slicing import batch_size as batch_size
    from smdp.torch.pipelining.tensors.slicing import cut as cut
    from smdp.torch.pipelining.units.wording import Wording as Wording
    from smdp.torch.precision.clipping import clip_grad_norm_ as clip_grad_norm_
    from smdp.torch.precision.loss_scales import DynamicLossScale as DynamicLossScale
    from smdp.torch.precision.lowered_model import lower_precision as lower_precision
    from smdp.torch.precision.mixed_precision import MixedPrecision as MixedPrecision
    from smdp.torch.preemption.preemption_ranks import find_ranks as find_ranks
    from smdp.torch.process_group.process_group import ProcessGroupSmdp as ProcessGroupSmdp
    from smdp.torch.process_group.process_group import timeout_of_world as timeout_of_world
    from smdp.torch.process_group.sparse_sums import empty_like as empty_like
    from smdp.torch.process_group.tensors import dtype_code as dtype_code
    from smdp.torch.process_group.tensors import reduction as reduction
    from smdp.torch.recompute.checkpoint_activations import (
        checkpoint_activations as checkpoint_activations,
    )
    from smdp.torch.recompute.policies import Policy as Policy
    from smdp.torch.recompute.policies import read_policy as read_policy
    from smdp.torch.sharded_parameters.asked_shards import asked_shards as asked_shards
    from smdp.torch.sharded_parameters.gathered_states import GatheredStates as GatheredStates
    from smdp.torch.sharded_parameters.gathered_states import whole_values as whole_values
    from smdp.torch.sharded_parameters.preconditions import check_not_sharded as check_not_sharded
    from smdp.torch.sharded_parameters.sharded_data_parallel import (
        ShardedDataParallel as ShardedDataParallel,
    )
    from smdp.torch.sharding.asked_sharding import asked_sharding as asked_sharding
    from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer as ShardedOptimizer

_MODULES = {
    "data_parallel.distributed_data_parallel": {"DistributedDataParallel"},
    "data_parallel.gradient_hooks": {"GradientHooks"},
    "data_parallel.input_wait": {"uncounted", "unwatch", "watch"},
    "data_parallel.reducer_options": {"check_reducer_options"},
    "data_parallel.sparse_gradients": {"SparseGradients", "sparse_on_any_rank", "stand_in_like"},
    "data_parallel.sync_batch_norm": {"SyncBatchNorm"},
    "mesh.agreement": {"on_every_rank"},
    "mesh.cuts": {"mesh_of_slices"},
    "offload.offload_activations": {"is_offloaded", "offload_activations"},
    "offload.target": {"target_of"},
    "pipelining.engine.same_batch": {"check_same_batch"},
    "pipelining.pipelined.pipelined_module": {"PipelinedModule"},
    "pipelining.pipelined.pipelining": {"pipeline_of"},
    "pipelining.pipelined.split_over_ranks": {"SplitOptions"},
    "pipelining.tensors.containers": {"map_tensors"},
    "pipelining.tensors.random_streams": {"KeptState"},
    "pipelining.tensors.slicing": {"batch_size", "cut"},
    "pipelining.units.wording": {"Wording"},
    "precision.clipping": {"clip_grad_norm_"},
    "precision.loss_scales": {"DynamicLossScale"},
    "precision.lowered_model": {"lower_precision"},
    "precision.mixed_precision": {"MixedPrecision"},
    "preemption.preemption_ranks": {"find_ranks"},
    "process_group.process_group": {"ProcessGroupSmdp", "timeout_of_world"},
    "process_group.sparse_sums": {"empty_like"},
    "process_group.tensors": {"dtype_code", "reduction"},
    "recompute.checkpoint_activations": {"checkpoint_activations"},
    "recompute.policies": {"Policy", "read_policy"},
    "sharded_parameters.asked_shards": {"asked_shards"},
    "sharded_parameters.gathered_states": {"GatheredStates", "whole_values"},
    "sharded_parameters.preconditions": {"check_not_sharded"},
    "sharded_parameters.sharded_data_parallel": {"ShardedDataParallel"},
    "sharding.asked_sharding": {"asked_sharding"},
    "sharding.sharded_optimizer": {"ShardedOptimizer"},
}


def __getattr__(name: str) -> Any:
    if name == "checkpoint":
        found: Any = import_module("smdp.torch.checkpoints.checkpoint")
    else:
        room = next((room for room, names in _MODULES.items() if name in names), None)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"smdp.torch.{room}"), name)
    hide_package("smdp.torch")
    globals()[name] = found
    return found
