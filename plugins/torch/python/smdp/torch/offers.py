"""Messages of one group that wait, without a deadline, until their receiver reads them or drops them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from smdp.torch import completion
from smdp.torch.tensors import dtype_code

if TYPE_CHECKING:
    from smdp._core import Group, Handle

# Seconds that a rank which leaves waits for those that may still read, and after which it says so.
_LONGEST_WAIT = 300.0
_LONG_WAIT = 5.0

_log = logging.getLogger("smdp.torch")


class Offers:
    """What this rank offers to others of a group, and what it is offered.

    Args:
        group: The core's group.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._numbers = itertools.count()
        self._given: dict[int, tuple[Handle, Tensor]] = {}
        self._expected: weakref.WeakSet[Offered] = weakref.WeakSet()

    def give(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Offer a tensor: contiguous, on the CPU, not empty. It must not change; it is let go when read."""
        handle = self._group.offer(tensor.data_ptr(), tensor.numel(), dtype_code(tensor.dtype), rank, tag)
        number = next(self._numbers)
        self._given[number] = handle, tensor
        completion.watch([handle], functools.partial(self._let_go, number))

    def expect(self, make_room: Callable[[], Tensor], rank: int, tag: int) -> Offered:
        """Give what reads another rank's offer into what `make_room` makes: contiguous, on the CPU."""
        offered = Offered(self._group, make_room, rank, tag)
        self._expected.add(offered)
        return offered

    def _let_go(self, number: int) -> None:
        self._given.pop(number, None)

    def refuse_all(self) -> None:
        """Give up what has not been read."""
        for offered in list(self._expected):
            offered.refuse()

    def settle(self) -> None:
        """Wait until all has been read or refused, or its reader has left; five minutes at most.

        refuse_all() comes first, or two ranks could wait for each other.
        """
        end = time.monotonic() + _LONGEST_WAIT
        for handle, tensor in list(self._given.values()):
            with contextlib.suppress(Exception):
                try:
                    handle.wait(_LONG_WAIT)
                except TimeoutError:
                    _log.warning(
                        "[smdp] rank %d of %d waits, before it leaves, for ranks that may still read %s%s, a"
                        " result of a step that lies here; read or drop it there",
                        self._group.rank,
                        self._group.size,
                        str(tensor.dtype).removeprefix("torch."),
                        list(tensor.shape),
                    )
                    handle.wait(max(0.001, end - time.monotonic()))


class Offered:
    """An offer of another rank, see Offers.expect(). Dropped before it is read, it is refused."""

    def __init__(self, group: Group, make_room: Callable[[], Tensor], rank: int, tag: int) -> None:
        self._group = group
        self._make_room = make_room
        self._rank = rank
        self._tag = tag
        self._is_open = True
        self._lock = threading.Lock()

    def read(self) -> Tensor:
        """Receive it; to be called once.

        Raises:
            smdp.SmdpError: The rank that has it is gone, or this one has given it up at its end.
        """
        with self._lock:
            is_open, self._is_open = self._is_open, False
        if not is_open:
            raise RuntimeError(
                f"[smdp] a result that lies on rank {self._rank} can no longer be read: this rank has left"
                " the group, or an earlier read failed; read results before destroy_process_group()"
            )
        tensor = self._make_room()
        code = dtype_code(tensor.dtype)
        handle = self._group.recv(tensor.data_ptr(), tensor.numel(), code, self._rank, self._tag, -1.0, True)
        cast("Handle", handle).wait()
        return tensor

    def refuse(self) -> None:
        """Give it up."""
        with self._lock:
            is_open, self._is_open = self._is_open, False
        if is_open:
            with contextlib.suppress(Exception):  # the group may be gone
                self._group.refuse(self._rank, self._tag)

    def __del__(self) -> None:
        """Let the owner have its memory back."""
        if not sys.is_finalizing():
            self.refuse()
