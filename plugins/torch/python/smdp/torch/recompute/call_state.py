"""What a call depends on besides its arguments: random generators and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class CallState:
    """The random generators and autocast at the time of a call, to run it again with the same result.

    Args:
        tensors: The arguments of the call, whose devices' generators count beside the CPU's.
        preserves_random_numbers: Whether the call draws the same random numbers again.
    """

    def __init__(self, tensors: Sequence[Tensor], *, preserves_random_numbers: bool = True) -> None:
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        self._types = ("cpu", *sorted({device.type for device in devices}))
        self._casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in self._types
            if torch.amp.is_autocast_available(kind)
        ]
        self._is_cached = torch.is_autocast_cache_enabled()
        self._random: Tensor | None = None
        self._device_random: list[tuple[torch.device, Tensor]] = []
        if preserves_random_numbers:
            self._random = torch.default_generator.get_state()
            for device in devices:
                self._device_random.append((device, torch.get_device_module(device).get_rng_state(device)))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the state within the context. The caller keeps the generators' current state."""
        if self._random is not None:
            torch.default_generator.set_state(self._random)
        for device, state in self._device_random:
            torch.get_device_module(device).set_rng_state(state, device)
        with contextlib.ExitStack() as stack:
            for kind, is_on, dtype in self._casts:
                stack.enter_context(
                    torch.autocast(kind, enabled=is_on, dtype=dtype, cache_enabled=self._is_cached)
                )
            yield


@contextlib.contextmanager
def kept_generators(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the random generators of the CPU and of the tensors' devices when the context ends."""
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    random = torch.default_generator.get_state()
    states = [(device, torch.get_device_module(device).get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(random)
        for device, state in states:
            torch.get_device_module(device).set_rng_state(state, device)
