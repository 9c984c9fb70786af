"""What a step function calls the model with: known before the model can be cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from smdp.torch.pipelining.tensors.random_streams import KeptState

_thread = threading.local()


class _Called(BaseException):
    """Ends the step function where it calls the model; no `except Exception` of it comes between."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = args, kwargs


def arguments_of_first_call(
    program: Callable[[Any], Any], part: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run a step function until it calls the model.

    Random numbers are the same again afterwards.

    Raises:
        ValueError: It does not call it.
    """
    _thread.is_looking = True
    try:
        with KeptState():
            program(part)
    except _Called as called:
        return called.arguments
    finally:
        _thread.is_looking = False
    raise ValueError(
        "[smdp] the first step does not call the model, which is cut on what it is called with; call it in"
        " the function decorated with @smp.step, or set skip_tracing"
    )


def is_tracing() -> bool:
    """Tell whether the model's arguments are being looked for: what the step function does then is undone."""
    return getattr(_thread, "is_looking", False)


def stop_at_first_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """End the function that arguments_of_first_call() runs; nothing if it runs none."""
    if is_tracing():
        raise _Called(args, kwargs)
