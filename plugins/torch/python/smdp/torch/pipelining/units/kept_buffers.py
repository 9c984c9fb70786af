"""Preserves a model's buffers during a forward that is not part of training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restores the model's buffers, as objects and in their contents, when the context ends."""
    kept = [
        (module, name, buffer, None if buffer.is_meta else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, contents in kept:
                module._buffers[name] = buffer
                if contents is not None:
                    buffer.copy_(contents)
