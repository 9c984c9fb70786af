"""CUDA tensors travel through pinned host memory, on streams of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

# Per device and process two streams, one per direction: copies from the device do not wait for results that
# go to it.
_loading: dict[torch.device, torch.cuda.Stream] = {}
_storing: dict[torch.device, torch.cuda.Stream] = {}


class CudaStaging:
    """Copies of one operation between a device and pinned host memory.

    A thread of the host waits for the copies from the device (the core may only send what has arrived), none
    for those to the device. Pinned buffers come from torch's caching allocator, which does not hand one out
    again while a stream still uses it.
    """

    __slots__ = ("_asked", "_loaded", "_stored", "_stores", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._asked: torch.cuda.Event | None = None
        self._loaded: torch.cuda.Event | None = None
        self._stored: torch.cuda.Event | None = None

    def stage(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        """Give a pinned host tensor, filled with the tensor's values if `load`.

        Raises:
            ValueError: The tensor is on another device than those before it.
            RuntimeError: The current stream is being captured.
        """
        if tensor.device != self.device:
            raise ValueError(f"one call, one device: got tensors on {self.device} and {tensor.device}")
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "[smdp] a call of smdp within the capture of a CUDA graph: the graph would replay the "
                    "copies to and from host memory without the communication between them. Capture what "
                    "lies between calls of smdp."
                )
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            current = torch.cuda.current_stream()
            if load:
                stream = _stream_of(_loading, self.device)
                stream.wait_stream(current)
                tensor.record_stream(stream)
                with torch.cuda.stream(stream):
                    # Resolved on the device: torch conjugates what it copies before it has arrived.
                    host.copy_(tensor.resolve_conj().resolve_neg(), non_blocking=True)
                    # One that lets the thread which waits for it sleep.
                    self._loaded = torch.cuda.Event(blocking=True)
                    self._loaded.record(stream)
            if store:
                # What the current stream does with `tensor` comes before the results.
                self._asked = current.record_event()
                tensor.record_stream(_stream_of(_storing, self.device))
                self._stores.append((tensor, host))
        return host

    def wait_loaded(self) -> None:
        """Block until the values are in host memory; any thread; releases the GIL."""
        if self._loaded is not None:
            # Else a thread that has never used this device would get memory on the first one.
            with torch.cuda.device(self.device):
                self._loaded.synchronize()

    def store(self) -> None:
        """Enqueue the copies of the results to the device."""
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
        """Make the stream of the copies to the device current.

        Its device first: going back to a stream of another device would give this process memory there.
        """
        stream = _stream_of(_storing, self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield stream

    def order_stream(self) -> None:
        """Let the current stream wait for the results."""
        if self._stored is not None:
            torch.cuda.current_stream(self.device).wait_event(self._stored)

    @property
    def has_results(self) -> bool:
        """Whether anything is copied to the device."""
        return self._asked is not None


def _stream_of(streams: dict[torch.device, torch.cuda.Stream], device: torch.device) -> torch.cuda.Stream:
    found = streams.get(device)
    return found or streams.setdefault(device, torch.cuda.Stream(device))
