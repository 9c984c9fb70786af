"""Messages of one group that wait, without a deadline, until their receiver reads them or drops them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from smdp.torch.process_group import completion
from smdp.torch.process_group.tensors import dtype_code
from smdp.torch.process_group.work import HandleWork

if TYPE_CHECKING:
    from smdp._core import Group, Handle

# Seconds in which a rank that leaves hands over what is still to be read; no program takes part in that.
_LONGEST_HAND_OVER = 60.0

_log = logging.getLogger("smdp.torch")


class PendingSends:
    """Messages of this rank that others of a group may read.

    Args:
        group: The core's group.

    Attributes:
        timeout_s: Of reading; negative: the core's.
    """

    def __init__(self, group: Group) -> None:
        self.timeout_s = -1.0
        self._group = group
        self._numbers = itertools.count()
        self._given: dict[int, tuple[Handle, Tensor]] = {}

    def give(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Offer a tensor: contiguous, on the CPU, not empty. It must not change; it is let go when read."""
        handle = self._group.offer(tensor.data_ptr(), tensor.numel(), dtype_code(tensor.dtype), rank, tag)
        number = next(self._numbers)
        self._given[number] = handle, tensor
        completion.watch([handle], lambda: self._let_go(number))

    def expect(self, make_room: Callable[[], Tensor], rank: int, tag: int) -> PendingReceive:
        """Give what reads another rank's offer into what `make_room` makes: contiguous, on the CPU."""
        return PendingReceive(self, self._group, make_room, rank, tag)

    def hand_over(self) -> None:
        """Send what is still offered to those who may read it, so that this rank can leave."""
        given = [handle for handle, _ in list(self._given.values())]
        end = time.monotonic() + _LONGEST_HAND_OVER
        # A group that has failed, or a forked child's, has nothing to hand over.
        with contextlib.suppress(Exception):
            if given:
                self._group.push_offers()
                for handle in given:
                    handle.wait(max(0.0, end - time.monotonic()))
        late = sum(not handle.done() for handle in given)
        if late and time.monotonic() >= end:
            _log.warning(
                "[smdp] rank %d of %d leaves after %.0f s of trying to hand over %d results of %d; who reads"
                " one of those gets an error",
                self._group.rank,
                self._group.size,
                _LONGEST_HAND_OVER,
                late,
                len(given),
            )

    def _let_go(self, number: int) -> None:
        self._given.pop(number, None)


class PendingReceive:
    """An offer of another rank, see PendingSends.expect(). Dropped before it is read, it is refused."""

    def __init__(
        self, sends: PendingSends, group: Group, make_room: Callable[[], Tensor], rank: int, tag: int
    ) -> None:
        self._sends = sends
        self._group = group
        self._make_room = make_room
        self._rank = rank
        self._tag = tag
        self._posted: tuple[HandleWork, Tensor] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask for it; read() waits for it."""
        with self._lock:
            self._begin()

    def read(self) -> Tensor:
        """Give it, also where an earlier call was interrupted.

        Raises:
            smdp.SmdpError: The rank that has it is gone, or this one has left the group.
        """
        with self._lock:
            work, tensor = self._begin()
        work.wait()
        return tensor

    def _begin(self) -> tuple[HandleWork, Tensor]:
        if self._posted is None:
            tensor = self._make_room()
            code = dtype_code(tensor.dtype)
            handle = self._group.recv(
                tensor.data_ptr(), tensor.numel(), code, self._rank, self._tag, self._sends.timeout_s, True
            )
            # Keeps the memory until it is filled, whatever becomes of this object.
            self._posted = HandleWork([cast("Handle", handle)], [tensor], tensor), tensor
        return self._posted

    def __del__(self) -> None:
        """Let the owner have its memory back."""
        if self._posted is None and not sys.is_finalizing():
            with contextlib.suppress(Exception):  # the group may be gone
                self._group.refuse(self._rank, self._tag)
