"""Messages of a group that wait without a deadline until their receiver reads or refuses them."""

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

# The longest time in seconds that a leaving rank spends on handing over messages that are still to be read.
_LONGEST_HAND_OVER = 60.0

_log = logging.getLogger("smdp.torch")


class PendingSends:
    """Messages of this rank that other ranks of a group may read.

    Args:
        group: The core's group.

    Attributes:
        timeout_s: The timeout of reading in seconds; negative for the core's.
    """

    def __init__(self, group: Group) -> None:
        self.timeout_s = -1.0
        self._group = group
        self._numbers = itertools.count()
        self._given: dict[int, tuple[Handle, Tensor]] = {}

    def give(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Offers a tensor to a rank until the rank reads it.

        Args:
            tensor: A contiguous tensor on the CPU that is not empty and must not change.
            rank: The receiver.
            tag: The tag of the message.
        """
        handle = self._group.offer(tensor.data_ptr(), tensor.numel(), dtype_code(tensor.dtype), rank, tag)
        number = next(self._numbers)
        self._given[number] = handle, tensor
        completion.watch([handle], lambda: self._let_go(number))

    def expect(self, make_room: Callable[[], Tensor], rank: int, tag: int) -> PendingReceive:
        """Returns an object that reads an offer of another rank.

        Args:
            make_room: Returns the tensor to fill, which is contiguous and on the CPU.
            rank: The sender.
            tag: The tag of the message.
        """
        return PendingReceive(self, self._group, make_room, rank, tag)

    def hand_over(self) -> None:
        """Sends all remaining offers to their receivers, so that this rank can leave."""
        given = [handle for handle, _ in list(self._given.values())]
        end = time.monotonic() + _LONGEST_HAND_OVER
        # A group that has failed, or that a forked child inherited, has nothing to hand over.
        with contextlib.suppress(Exception):
            if given:
                self._group.push_offers()
                for handle in given:
                    handle.wait(max(0.0, end - time.monotonic()))
        late = sum(not handle.done() for handle in given)
        if late and time.monotonic() >= end:
            _log.warning(
                "[smdp] rank %d of %d leaves after trying for %.0f s to hand over its results. %d of %d"
                " results were not handed over, and a rank that reads one of them gets an error.",
                self._group.rank,
                self._group.size,
                _LONGEST_HAND_OVER,
                late,
                len(given),
            )

    def _let_go(self, number: int) -> None:
        self._given.pop(number, None)


class PendingReceive:
    """An offer of another rank; see PendingSends.expect(). Dropping it before it is read refuses it."""

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
        """Requests the message without waiting. `read()` waits for it."""
        with self._lock:
            self._begin()

    def read(self) -> Tensor:
        """Waits for the message and returns it. It may be called again after an interruption.

        Raises:
            smdp.SmdpError: The sender is gone, or this rank has left the group.
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
            # The Work keeps the memory until it is filled, even if this object is dropped.
            self._posted = HandleWork([cast("Handle", handle)], [tensor], tensor), tensor
        return self._posted

    def __del__(self) -> None:
        """Refuses a message that was not requested, so that the sender can free its memory."""
        if self._posted is None and not sys.is_finalizing():
            with contextlib.suppress(Exception):  # the group may be gone
                self._group.refuse(self._rank, self._tag)
