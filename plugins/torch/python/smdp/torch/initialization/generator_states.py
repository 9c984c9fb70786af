"""States of random generators: kept, and gone back to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_STATES_PER_SLAB = 128  # 5 KiB each on a CPU


class GeneratorStates:
    """Keeps copies of states side by side: one by one, they would part the heap's free memory."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, 0, dtype=torch.uint8, device="cpu")
        self._count = 0

    def keep(self, generator: torch.Generator) -> Tensor:
        """Give a copy of the state, which other copies share storage with."""
        state = generator.get_state()
        if self._count == self._slab.size(0) or self._slab.size(1) != state.numel():
            self._slab = torch.empty(_STATES_PER_SLAB, state.numel(), dtype=torch.uint8, device="cpu")
            self._count = 0
        self._count += 1
        return self._slab[self._count - 1].copy_(state)


def default_generator(device: torch.device) -> torch.Generator:
    """Give the generator that draws on a device use unless told otherwise."""
    if device.type == "cpu":
        return torch.default_generator
    backend = getattr(torch, device.type)
    backend.init()  # there are none before
    generators = backend.default_generators
    index = backend.current_device() if device.index is None else device.index
    return generators[index]


@contextlib.contextmanager
def generator_at(device: torch.device, state: Tensor | None) -> Iterator[None]:
    """Draw from a state within; the generator's own comes back. None: leave it."""
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
