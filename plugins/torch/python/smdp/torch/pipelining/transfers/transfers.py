"""Values and gradients on their way between the ranks of one pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from smdp._errors import SmdpError
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.process_group.pending_sends import PendingReceive
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class Lane(IntEnum):
    """Whose messages travel over a group, so that their tags do not meet. The script's own have no lane."""

    VALUES = 1
    READS = 2
    OBJECTS = 3


class Arrival:
    """A receive that has been posted."""

    __slots__ = ("_channel", "_what", "_work", "tensor")

    def __init__(self, channel: Channel, tensor: Tensor, work: Any, what: str) -> None:
        self.tensor = tensor
        self._channel = channel
        self._work = work
        self._what = what

    def is_there(self) -> bool:
        """Tell whether wait() would return at once."""
        return bool(self._work.is_completed())

    def wait_for(self, seconds: float) -> bool:
        """Wait for a while, and tell whether it is there."""
        start = time.perf_counter()
        # Whatever went wrong, wait() tells.
        with contextlib.suppress(SmdpError):
            self._work.wait(timedelta(seconds=seconds))
        self._channel.waited += time.perf_counter() - start
        return self.is_there()

    def wait(self) -> Tensor:
        """Give the tensor.

        Raises:
            smdp.SmdpError: The sender is gone, or the deadline has passed; the message says what was awaited.
        """
        start = time.perf_counter()
        with Telling(f"waiting for {self._what}"):
            self._work.wait()
        self._channel.waited += time.perf_counter() - start
        return self.tensor


class Channel:
    """Tagged messages in one lane of a group: another lane may have the same tags.

    Args:
        group: Whose ranks send and receive.
        lane: What this channel is for.

    Attributes:
        waited: Seconds that this rank has waited for what it receives.
    """

    def __init__(self, group: ProcessGroupSmdp, lane: Lane) -> None:
        self.waited = 0.0
        self._group = group
        # Tags in a lane are below 2^61.
        self._first_tag = int(lane) << 61
        self._sent: list[tuple[Tensor, Any, str]] = []

    def send(self, tensor: Tensor, rank: int, tag: int, what: str) -> None:
        """Begin to send; finish() waits for it. What has left is let go at the next send."""
        data = flat(tensor.detach())
        self._sent = [sent for sent in self._sent if not sent[1].is_completed()]
        with Telling(f"sending {what}"):
            self._sent.append((data, self._group.send([data], rank, self._first_tag + tag), what))

    def receive(self, tensor: Tensor, rank: int, tag: int, what: str) -> Arrival:
        """Start receiving into a dense tensor."""
        with Telling(f"waiting for {what}"):
            return Arrival(self, tensor, self._group.recv([flat(tensor)], rank, self._first_tag + tag), what)

    def offer(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Lets another rank read a tensor, which travels only when it is asked for; see PendingSends."""
        self._group.pending_sends.give(tensor, rank, self._first_tag + tag)

    def expect(self, make_room: Callable[[], Tensor], rank: int, tag: int) -> PendingReceive:
        """Returns what reads another rank's offer; see PendingSends."""
        return self._group.pending_sends.expect(make_room, rank, self._first_tag + tag)

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for _, work, what in self._sent:
            with Telling(f"sending {what}"):
                work.wait()
        self._sent.clear()


class Telling:
    """Adds to an error what was under way. Each message is in one: as a generator it would take longer."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SmdpError):
            error.args = (f"{error.args[0] if error.args else ''} While {self._what}.", *error.args[1:])


def room_for(value: Value, strides: tuple[int, ...]) -> Tensor:
    """Give a tensor like the placeholder of a value, without contents."""
    ghost = value.ghost
    return torch.empty_strided(ghost.shape, strides, dtype=ghost.dtype, device=ghost.device)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Give the strides of a tensor, if it fills its memory; else those that it is to have when it travels."""
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def strides_of(value: Value) -> tuple[int, ...]:
    """Give the strides under which a value travels between stages.

    Those of the owner's tensor: torch predicts others for some operations, and kernels round by them.
    """
    return dense_strides(value.ghost) if value.strides is None else value.strides


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Give a tensor in the strides under which it travels."""
    # Of a dimension of size 1 the stride says nothing.
    if all(
        own == other or size == 1
        for size, own, other in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.detach()
    )


def flat(tensor: Tensor) -> Tensor:
    """Give all elements of a dense tensor in the order of memory, as a view."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))
