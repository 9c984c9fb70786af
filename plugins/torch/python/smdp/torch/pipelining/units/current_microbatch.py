"""The microbatch that a thread runs; while there is one, calls of units go through the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from torch import nn

_thread = threading.local()


class RunsModel(Protocol):
    """The part of a microbatch's interface that PipelinedModule uses."""

    def call_model(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Runs the part of the model's forward that concerns this rank."""

    def take_loss(self, loss: Any) -> None:
        """Records the loss whose backward the schedule runs."""


def is_running() -> bool:
    """Returns whether this thread runs a program in stages."""
    return getattr(_thread, "is_running", False)


def current_microbatch() -> RunsModel | None:
    """Returns the microbatch that this thread runs, or None."""
    return getattr(_thread, "microbatch", None)


@contextlib.contextmanager
def running(microbatch: RunsModel | None = None) -> Iterator[None]:
    """Marks this thread as running `microbatch` while the context is open; a dry run passes None."""
    _thread.is_running = True
    _thread.microbatch = microbatch
    try:
        yield
    finally:
        _thread.is_running = False
        _thread.microbatch = None
