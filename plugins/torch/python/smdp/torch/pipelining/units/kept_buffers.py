"""Leaves a model's buffers as they were: a forward that only tells something must not count as training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Run forwards within; afterwards buffers are the same objects with the same contents."""
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
