"""`smp.nn`: modules that are divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

from smdp.torch.model_parallel.nn import huggingface as huggingface
from smdp.torch.model_parallel.nn.attention import DistributedAttentionLayer as DistributedAttentionLayer
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule as DistributedModule
from smdp.torch.model_parallel.nn.embedding import DistributedEmbedding as DistributedEmbedding
from smdp.torch.model_parallel.nn.flash_attention import FlashAttentionLayer as FlashAttentionLayer
from smdp.torch.model_parallel.nn.layer_norm import DistributedLayerNorm as DistributedLayerNorm
from smdp.torch.model_parallel.nn.layer_norm import FusedLayerNorm as FusedLayerNorm
from smdp.torch.model_parallel.nn.linear import DistributedLinear as DistributedLinear
from smdp.torch.model_parallel.nn.lm_head import (
    DistributedTransformerLMHead as DistributedTransformerLMHead,
)
from smdp.torch.model_parallel.nn.transformer import DistributedTransformer as DistributedTransformer
from smdp.torch.model_parallel.nn.transformer_layer import (
    DistributedTransformerLayer as DistributedTransformerLayer,
)
from smdp.torch.model_parallel.nn.transformer_output import (
    DistributedTransformerOutputLayer as DistributedTransformerOutputLayer,
)

__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLayerNorm",
    "DistributedLinear",
    "DistributedModule",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "huggingface",
]
