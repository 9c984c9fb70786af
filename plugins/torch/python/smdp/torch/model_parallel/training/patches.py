"""`smp.patches`: replacements for torch's checkpoint functions."""

from __future__ import annotations

from smdp.torch.model_parallel.training import activation_checkpointing as checkpoint

__all__ = ["checkpoint"]
