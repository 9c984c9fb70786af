"""Copies torch's per-thread state from the thread that calls a step to those of its microbatches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_DEVICES = ("cpu", "cuda")


class Modes:
    """Grad mode, autocast, default device and CUDA stream at the time this object is created."""

    def __init__(self) -> None:
        self._device = torch.get_default_device()
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        self.grad = torch.is_grad_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in _DEVICES
            if torch.is_autocast_enabled(device)
        ]
        self._is_cached = torch.is_autocast_cache_enabled()

    def key(self) -> object:
        """Returns a value that is equal for equal modes."""
        return (self.grad, tuple(self._autocast), self._device)

    @contextlib.contextmanager
    def restored(self, *, grad: bool) -> Iterator[None]:
        """Sets the modes in this thread; `grad` replaces the stored grad mode."""
        with contextlib.ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.device(self._stream.device))
                stack.enter_context(torch.cuda.stream(self._stream))
            if self._device != torch.get_default_device():
                stack.enter_context(self._device)
            stack.enter_context(torch.set_grad_enabled(grad))
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=self._is_cached))
            yield


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Disables `torch.autocast`, because a backward runs outside of it."""
    with contextlib.ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
