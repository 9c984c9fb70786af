"""CUDA tensors travel through pinned host memory, on a stream of their own."""

from __future__ import annotations

import torch
from torch import Tensor

# One side stream per device and process: copies of one device never overtake each other.
_streams: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Give the stream on which smdp copies to and from a device."""
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device)
    return stream


class CudaStaging:
    """Copies of one operation between a device and pinned host memory.

    The host waits for the copies from the device (the core may only send what has arrived), never for those
    to the device. Pinned buffers come from torch's caching allocator, which does not hand one out again while
    a stream still uses it.
    """

    __slots__ = ("_loaded", "_stores", "device", "stream")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = side_stream(device)
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._loaded = False

    def stage(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        """Give a pinned host tensor, filled with the tensor's values if `load`."""
        if tensor.device != self.device:
            raise ValueError(f"one call, one device: got tensors on {self.device} and {tensor.device}")
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        # Also where nothing is loaded: what the current stream does with `tensor` comes before the results.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        tensor.record_stream(self.stream)
        if load:
            with torch.cuda.stream(self.stream):
                host.copy_(tensor, non_blocking=True)
            self._loaded = True
        if store:
            self._stores.append((tensor, host))
        return host

    def wait_loaded(self) -> None:
        """Block until the values are in host memory; releases the GIL."""
        if self._loaded:
            self.stream.synchronize()

    def store(self) -> None:
        """Enqueue the copies of the results to the device."""
        with torch.cuda.stream(self.stream):
            for tensor, host in self._stores:
                tensor.copy_(host, non_blocking=True)

    def order_stream(self) -> None:
        """Let the current stream wait for the side stream."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
