"""Finds the arguments with which a step function calls the model, before the model is cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from smdp.torch.pipelining.tensors.random_streams import KeptState

_thread = threading.local()


class _Called(BaseException):
    """Ends the step function where it calls the model; an `except Exception` does not catch it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = args, kwargs


def arguments_of_first_call(
    program: Callable[[Any], Any], part: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Runs a step function until it calls the model, and returns the arguments of that call.

    The random generators are restored afterwards.

    Raises:
        ValueError: The function does not call the model.
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
        "[smdp] the first step does not call the model, but the model is cut by the arguments of that call;"
        " call it in the function decorated with @smp.step, or set skip_tracing"
    )


def is_tracing() -> bool:
    """Returns whether the step function runs only to find the model's arguments."""
    return getattr(_thread, "is_looking", False)


def stop_at_first_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Ends the function that arguments_of_first_call() runs; does nothing otherwise."""
    if is_tracing():
        raise _Called(args, kwargs)
