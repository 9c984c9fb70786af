"""Brings pending parameters up to date, and remembers an error that kept some from their new values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smdp.torch.forward_waits.pending_watch import Words


class Settling:
    """Finishes pending parameters on any thread.

    If finishing fails, parts of the model are old and others are new, so every later use raises an error.

    Args:
        count: The number of parameters.
        pending: The indices of the parameters without their new values, at any time.
        finish: Gives some of the pending parameters their new values.
        words: For messages.
    """

    def __init__(
        self,
        count: int,
        pending: Collection[int],
        finish: Callable[[list[int]], None],
        words: Words,
    ) -> None:
        self._count = count
        self._pending = pending
        self._finish = finish
        self._words = words
        self.lock = threading.RLock()  # held during finish(), and by those who change what is pending
        self._error: BaseException | None = None  # the error that kept parts from their new values

    def settle(self, indices: Iterable[int] | None = None) -> None:
        """Brings parameters up to date.

        Args:
            indices: Which ones; None: all.

        Raises:
            RuntimeError: An earlier error has kept parts of the model from their new values.
        """
        with self.lock:
            if self._error is not None:
                raise RuntimeError(
                    f"[smdp] {self._words.feature}: an error has left parts of the model without"
                    f" {self._words.missed}. Continue from a checkpoint in a new process. The error was:"
                    f" {self._error}"
                ) from self._error
            every = range(self._count) if indices is None else indices
            mine = [index for index in every if index in self._pending] if self._pending else []
            if not mine:
                return
            try:
                # The step runs as after backward, regardless of the modes of the surrounding forward.
                with (
                    torch.inference_mode(False),
                    torch.no_grad(),
                    torch.autocast("cpu", enabled=False),
                    torch._C.DisableTorchFunction(),
                    _disable_current_modes(),
                ):
                    self._finish(mine)
            except BaseException as error:
                self._error = error
                raise
