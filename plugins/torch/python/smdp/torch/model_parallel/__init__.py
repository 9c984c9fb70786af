"""Pipeline parallelism: the stages of a model run on several ranks, by ghost execution.

Also contains the API of SageMaker Model Parallel: `import smdp.torch.model_parallel as smp`.
"""

from __future__ import annotations

from typing import Any

from smdp.torch.initialization.delayed_initialization import delayed_initialization as delayed_initialization
from smdp.torch.model_parallel import fp16 as fp16
from smdp.torch.model_parallel import nn as nn
from smdp.torch.model_parallel import optimizers as optimizers
from smdp.torch.model_parallel import utils as utils
from smdp.torch.model_parallel.checkpoints import (
    sharded_data_parallel_checkpoint as sharded_data_parallel_checkpoint,
)
from smdp.torch.model_parallel.checkpoints.checkpoint_files import load as load
from smdp.torch.model_parallel.checkpoints.checkpoint_files import save as save
from smdp.torch.model_parallel.checkpoints.checkpoints import resume_from_checkpoint as resume_from_checkpoint
from smdp.torch.model_parallel.checkpoints.checkpoints import save_checkpoint as save_checkpoint
from smdp.torch.model_parallel.job import state as _state_module
from smdp.torch.model_parallel.job.communication import allgather as allgather
from smdp.torch.model_parallel.job.communication import barrier as barrier
from smdp.torch.model_parallel.job.communication import broadcast as broadcast
from smdp.torch.model_parallel.job.communication import dp_barrier as dp_barrier
from smdp.torch.model_parallel.job.communication import mp_barrier as mp_barrier
from smdp.torch.model_parallel.job.communication import recv_from as recv_from
from smdp.torch.model_parallel.job.communication import send as send
from smdp.torch.model_parallel.job.groups import CommGroup as CommGroup
from smdp.torch.model_parallel.job.groups import RankType as RankType
from smdp.torch.model_parallel.job.initialization import init as init
from smdp.torch.model_parallel.job.initialization import is_initialized as is_initialized
from smdp.torch.model_parallel.job.initialization import shutdown as shutdown
from smdp.torch.model_parallel.job.ranks import dp_rank as dp_rank
from smdp.torch.model_parallel.job.ranks import dp_size as dp_size
from smdp.torch.model_parallel.job.ranks import get_dp_group as get_dp_group
from smdp.torch.model_parallel.job.ranks import get_dp_process_group as get_dp_process_group
from smdp.torch.model_parallel.job.ranks import get_mp_group as get_mp_group
from smdp.torch.model_parallel.job.ranks import get_mp_process_group as get_mp_process_group
from smdp.torch.model_parallel.job.ranks import get_pp_group as get_pp_group
from smdp.torch.model_parallel.job.ranks import get_pp_process_group as get_pp_process_group
from smdp.torch.model_parallel.job.ranks import get_rdp_group as get_rdp_group
from smdp.torch.model_parallel.job.ranks import get_rdp_process_group as get_rdp_process_group
from smdp.torch.model_parallel.job.ranks import get_tp_group as get_tp_group
from smdp.torch.model_parallel.job.ranks import get_tp_process_group as get_tp_process_group
from smdp.torch.model_parallel.job.ranks import get_world_process_group as get_world_process_group
from smdp.torch.model_parallel.job.ranks import local_rank as local_rank
from smdp.torch.model_parallel.job.ranks import local_size as local_size
from smdp.torch.model_parallel.job.ranks import mp_rank as mp_rank
from smdp.torch.model_parallel.job.ranks import mp_size as mp_size
from smdp.torch.model_parallel.job.ranks import pp_rank as pp_rank
from smdp.torch.model_parallel.job.ranks import pp_size as pp_size
from smdp.torch.model_parallel.job.ranks import rank as rank
from smdp.torch.model_parallel.job.ranks import rdp_rank as rdp_rank
from smdp.torch.model_parallel.job.ranks import rdp_size as rdp_size
from smdp.torch.model_parallel.job.ranks import size as size
from smdp.torch.model_parallel.job.ranks import tp_rank as tp_rank
from smdp.torch.model_parallel.job.ranks import tp_size as tp_size
from smdp.torch.model_parallel.job.state import state as state
from smdp.torch.model_parallel.modules import distributed_model as distributed_model
from smdp.torch.model_parallel.modules.creation import (
    delay_param_initialization as delay_param_initialization,
)
from smdp.torch.model_parallel.modules.creation import model_creation as model_creation
from smdp.torch.model_parallel.modules.distributed_model import DistributedModel as DistributedModel
from smdp.torch.model_parallel.modules.first_call import is_tracing as is_tracing
from smdp.torch.model_parallel.modules.manual_partition import partition as partition
from smdp.torch.model_parallel.modules.manual_partition import set_partition as set_partition
from smdp.torch.model_parallel.tensor_parallelism.marks import (
    set_tensor_parallelism as set_tensor_parallelism,
)
from smdp.torch.model_parallel.tensor_parallelism.marks import tensor_parallelism as tensor_parallelism
from smdp.torch.model_parallel.tensor_parallelism.registry import tp_register as tp_register
from smdp.torch.model_parallel.tensor_parallelism.registry import (
    tp_register_with_module as tp_register_with_module,
)
from smdp.torch.model_parallel.training import amp as amp
from smdp.torch.model_parallel.training import patches as patches
from smdp.torch.model_parallel.training.activation_checkpointing import (
    set_activation_checkpointing as set_activation_checkpointing,
)
from smdp.torch.model_parallel.training.distributed_optimizer import (
    DistributedOptimizer as DistributedOptimizer,
)
from smdp.torch.model_parallel.training.step import step as step
from smdp.torch.model_parallel.training.step_output import StepOutput as StepOutput
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule as PipelinedModule
from smdp.torch.pipelining.pipelined.pipelining import pipeline as pipeline
from smdp.torch.precision.clipping import clip_grad_norm_ as clip_grad_norm_
from smdp.torch.precision.gradient_scaler import GradScaler as GradScaler
from smdp.torch.process_group._dynamo import hide_package as _hide_package

model = distributed_model
state_mod = _state_module

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
TP_GROUP = CommGroup.TP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP
WORLD_RANK = RankType.WORLD_RANK
MP_RANK = RankType.MP_RANK
DP_RANK = RankType.DP_RANK
PP_RANK = RankType.PP_RANK
TP_RANK = RankType.TP_RANK
RDP_RANK = RankType.RDP_RANK

_hide_package("smdp.torch")

__all__ = [
    "DP_GROUP",
    "DP_RANK",
    "MP_GROUP",
    "MP_RANK",
    "PP_GROUP",
    "PP_RANK",
    "RDP_GROUP",
    "RDP_RANK",
    "TP_GROUP",
    "TP_RANK",
    "WORLD",
    "WORLD_RANK",
    "CommGroup",
    "DistributedModel",
    "DistributedOptimizer",
    "GradScaler",
    "PipelinedModule",
    "RankType",
    "StepOutput",
    "allgather",
    "amp",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "delay_param_initialization",
    "delayed_initialization",
    "distributed_model",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "fp16",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "model",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "nn",
    "optimizers",
    "partition",
    "patches",
    "pipeline",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "set_tensor_parallelism",
    "sharded_data_parallel_checkpoint",
    "shutdown",
    "size",
    "state",
    "state_mod",
    "step",
    "tensor_parallelism",
    "tp_rank",
    "tp_register",
    "tp_register_with_module",
    "tp_size",
    "utils",
]


def __getattr__(name: str) -> Any:
    """Raises an error for a name that SMP does not have."""
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
