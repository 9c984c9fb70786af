"""Buffers that a forward changes, such as running statistics: running it again must not change them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class ChangedBuffers:
    """The buffers of a module and its parts that its forward changes in place or replaces.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._holders: list[tuple[nn.Module, str]] | None = None
        self._changed: dict[tuple[nn.Module, str], None] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Notes the buffers that change in the context."""
        if self._holders is None:
            self._holders = [
                (part, name)
                for part in self._module.modules()
                for name in part._buffers
                if part._buffers[name] is not None
            ]
        before = [self._state(place) for place in self._holders]
        yield
        for place, state in zip(self._holders, before, strict=True):
            # Norms change their statistics without counting it as a version.
            if self._state(place) != state or (isinstance(place[0], _NormBase) and place[0].training):
                self._changed[place] = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restores the buffers that change in a forward when the context ends."""
        buffers = [(part, name, part._buffers[name]) for part, name in self._changed]
        values = [None if buffer is None else buffer.clone() for _, _, buffer in buffers]
        try:
            yield
        finally:
            for (part, name, buffer), value in zip(buffers, values, strict=True):
                part._buffers[name] = buffer
                if buffer is not None and value is not None:
                    with torch.no_grad():
                        buffer.copy_(value)

    def _state(self, place: tuple[nn.Module, str]) -> tuple[int, int]:
        part, name = place
        buffer: Tensor | None = part._buffers.get(name)
        version = 0 if buffer is None or buffer.is_inference() else buffer._version
        return id(buffer), version
