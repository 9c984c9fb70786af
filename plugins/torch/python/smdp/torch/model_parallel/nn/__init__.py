"""`smp.nn`: modules that are divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

from torch.nn import LayerNorm as FusedLayerNorm

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule as DistributedModule
from smdp.torch.model_parallel.nn.embedding import DistributedEmbedding as DistributedEmbedding
from smdp.torch.model_parallel.nn.linear import DistributedLinear as DistributedLinear

__all__ = ["DistributedEmbedding", "DistributedLinear", "DistributedModule", "FusedLayerNorm"]
