"""Saves and restores the states of random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_STATES_PER_SLAB = 128  # a state has 5 KiB on a CPU


class GeneratorStates:
    """Keeps copies of states in large blocks, because many small ones would fragment the heap."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, 0, dtype=torch.uint8, device="cpu")
        self._count = 0

    def keep(self, generator: torch.Generator) -> Tensor:
        """Returns a copy of the generator's state, which shares its storage with other copies."""
        state = generator.get_state()
        if self._count == self._slab.size(0) or self._slab.size(1) != state.numel():
            self._slab = torch.empty(_STATES_PER_SLAB, state.numel(), dtype=torch.uint8, device="cpu")
            self._count = 0
        self._count += 1
        return self._slab[self._count - 1].copy_(state)


def default_generator(device: torch.device) -> torch.Generator:
    """Returns the default generator of a device."""
    if device.type == "cpu":
        return torch.default_generator
    backend = getattr(torch, device.type)
    backend.init()  # creates the generators
    generators = backend.default_generators
    index = backend.current_device() if device.index is None else device.index
    return generators[index]


@contextlib.contextmanager
def generator_at(device: torch.device, state: Tensor | None) -> Iterator[None]:
    """Sets the default generator to a state within the context. With None it does nothing."""
    if state is None:
        yield
        return
    generator = default_generator(device)
    before = generator.get_state()
    generator.set_state(state.clone())  # torch crashes on a view
    try:
        yield
    finally:
        generator.set_state(before)
