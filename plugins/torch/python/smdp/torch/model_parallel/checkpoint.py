"""Checkpoints of a model in stages."""

from __future__ import annotations

from smdp.torch.checkpoints.checkpoint import has_safetensors as has_safetensors
from smdp.torch.checkpoints.checkpoint import load as load
from smdp.torch.checkpoints.checkpoint import load_safetensors as load_safetensors
from smdp.torch.checkpoints.checkpoint import save as save
from smdp.torch.checkpoints.checkpoint import save_safetensors as save_safetensors

__all__ = ["has_safetensors", "load", "load_safetensors", "save", "save_safetensors"]
