"""Pipelines: a model's stages on several ranks, by ghost execution."""

from __future__ import annotations

from smdp.torch.model_parallel.clipping import clip_grad_norm_ as clip_grad_norm_
from smdp.torch.model_parallel.delayed_initialization import delayed_initialization as delayed_initialization
from smdp.torch.model_parallel.gradient_scaler import GradScaler as GradScaler
from smdp.torch.model_parallel.pipelined_module import PipelinedModule as PipelinedModule
from smdp.torch.model_parallel.pipelining import pipeline as pipeline

__all__ = ["GradScaler", "PipelinedModule", "clip_grad_norm_", "delayed_initialization", "pipeline"]
