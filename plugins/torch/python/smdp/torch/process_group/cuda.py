"""Copies of CUDA tensors to and from pinned host memory, on separate streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

# One stream per device and direction, so that copies from the device do not wait for results going to it.
_loading: dict[torch.device, torch.cuda.Stream] = {}
_storing: dict[torch.device, torch.cuda.Stream] = {}


class CudaStaging:
    """The copies of one operation between a device and pinned host memory.

    A host thread waits for the copies from the device, because the core may send only values that have
    arrived. No host thread waits for the copies to the device. Pinned buffers come from torch's caching
    allocator, which does not reuse a buffer while a stream still uses it.
    """

    __slots__ = ("_asked", "_loaded", "_stored", "_stores", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._asked: torch.cuda.Event | None = None
        self._loaded: torch.cuda.Event | None = None
        self._stored: torch.cuda.Event | None = None

    def stage(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        """Returns a pinned host tensor for a tensor on the device.

        Args:
            tensor: The tensor on the device.
            load: Whether to copy the tensor's values to the host tensor.
            store: Whether `store()` copies the results to the tensor.

        Raises:
            ValueError: The tensor is on a different device than the tensors before it.
            RuntimeError: The current stream is being captured.
        """
        if tensor.device != self.device:
            raise ValueError(
                f"all tensors of one call must be on the same device, but got {self.device} and"
                f" {tensor.device}"
            )
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "[smdp] smdp was called during the capture of a CUDA graph. The graph would replay the"
                    " copies to and from host memory without the communication between them. Capture only"
                    " the code between calls of smdp."
                )
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            current = torch.cuda.current_stream()
            if load:
                stream = _stream_of(_loading, self.device)
                stream.wait_stream(current)
                tensor.record_stream(stream)
                with torch.cuda.stream(stream):
                    # Resolved on the device, since torch would conjugate the host copy before it has arrived.
                    host.copy_(tensor.resolve_conj().resolve_neg(), non_blocking=True)
                    # A blocking event lets the waiting thread sleep.
                    self._loaded = torch.cuda.Event(blocking=True)
                    self._loaded.record(stream)
            if store:
                # The results must wait for the current stream's earlier uses of `tensor`.
                self._asked = current.record_event()
                tensor.record_stream(_stream_of(_storing, self.device))
                self._stores.append((tensor, host))
        return host

    def wait_loaded(self) -> None:
        """Waits until the values are in host memory. Any thread may call it; it releases the GIL."""
        if self._loaded is not None:
            # Without this, a thread that has not used CUDA would allocate memory on the first device.
            with torch.cuda.device(self.device):
                self._loaded.synchronize()

    def store(self) -> None:
        """Enqueues the copies of the results to the device."""
        if self._asked is None:
            return
        with self.on_stream() as stream:
            stream.wait_event(self._asked)
            for tensor, host in self._stores:
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(host, non_blocking=True)
            self._stored = stream.record_event()

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[torch.cuda.Stream]:
        """Makes the stream of the copies to the device the current stream.

        The device becomes current first. Otherwise, returning to a stream of a different device would
        allocate memory there.
        """
        stream = _stream_of(_storing, self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield stream

    def order_stream(self) -> None:
        """Makes the current stream wait for the results."""
        if self._stored is not None:
            torch.cuda.current_stream(self.device).wait_event(self._stored)

    @property
    def has_results(self) -> bool:
        """Whether results are copied to the device."""
        return self._asked is not None


def _stream_of(streams: dict[torch.device, torch.cuda.Stream], device: torch.device) -> torch.cuda.Stream:
    found = streams.get(device)
    return found or streams.setdefault(device, torch.cuda.Stream(device))
