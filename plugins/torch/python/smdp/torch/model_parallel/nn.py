"""`smp.nn`: modules of tensor parallelism, which can be imported, but are not supported yet."""

from __future__ import annotations

from typing import Any

from torch.nn import LayerNorm as FusedLayerNorm

from smdp.torch.model_parallel.unsupported_names import TENSOR_PARALLELISM, LaterModule, comes_later

__all__ = ["FusedLayerNorm"]

_NAMES = (
    "DistributedModule",
    "DistributedLinear",
    "DistributedEmbedding",
    "DistributedTransformer",
    "DistributedTransformerLayer",
    "DistributedTransformerLMHead",
    "DistributedAttentionLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
)


def __getattr__(name: str) -> Any:
    """Returns a class that cannot be instantiated, for a module that smdp does not support yet."""
    if name == "huggingface":
        return LaterModule("nn.huggingface")
    if name in _NAMES:
        return comes_later(f"nn.{name}", TENSOR_PARALLELISM)
    raise AttributeError(f"[smdp] smp.nn has no name {name!r}")
