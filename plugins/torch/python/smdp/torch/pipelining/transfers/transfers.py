"""Point-to-point messages with values and gradients between the ranks of one pipeline."""

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
    """Separates the tags of different uses of one group. Messages of the user's script have no lane."""

    VALUES = 1
    READS = 2
    OBJECTS = 3


class Arrival:
    """A posted receive."""

    __slots__ = ("_channel", "_what", "_work", "tensor")

    def __init__(self, channel: Channel, tensor: Tensor, work: Any, what: str) -> None:
        self.tensor = tensor
        self._channel = channel
        self._work = work
        self._what = what

    def is_there(self) -> bool:
        """Returns whether wait() would return at once."""
        return bool(self._work.is_completed())

    def wait_for(self, seconds: float) -> bool:
        """Waits for at most some seconds, and returns whether the tensor has arrived."""
        start = time.perf_counter()
        # wait() raises any error.
        with contextlib.suppress(SmdpError):
            self._work.wait(timedelta(seconds=seconds))
        self._channel.waited += time.perf_counter() - start
        return self.is_there()

    def wait(self) -> Tensor:
        """Returns the tensor once it has arrived.

        Raises:
            smdp.SmdpError: The sender is gone or the deadline has passed; the message names the awaited
                value.
        """
        start = time.perf_counter()
        with Telling(f"waiting for {self._what}"):
            self._work.wait()
        self._channel.waited += time.perf_counter() - start
        return self.tensor


class Channel:
    """Tagged messages in one lane of a group; other lanes may use the same tags.

    Args:
        group: The group whose ranks send and receive.
        lane: The use of this channel.

    Attributes:
        waited: Seconds that this rank has waited for receives.
    """

    def __init__(self, group: ProcessGroupSmdp, lane: Lane) -> None:
        self.waited = 0.0
        self._group = group
        # Tags in a lane are below 2^61.
        self._first_tag = int(lane) << 61
        self._sent: list[tuple[Tensor, Any, str]] = []

    def send(self, tensor: Tensor, rank: int, tag: int, what: str) -> None:
        """Starts to send; finish() waits for completion. The next send releases completed buffers."""
        data = flat(tensor.detach())
        self._sent = [sent for sent in self._sent if not sent[1].is_completed()]
        with Telling(f"sending {what}"):
            self._sent.append((data, self._group.send([data], rank, self._first_tag + tag), what))

    def receive(self, tensor: Tensor, rank: int, tag: int, what: str) -> Arrival:
        """Starts receiving into a dense tensor."""
        with Telling(f"waiting for {what}"):
            return Arrival(self, tensor, self._group.recv([flat(tensor)], rank, self._first_tag + tag), what)

    def offer(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Lets another rank read a tensor, which is sent only on request; see PendingSends."""
        self._group.pending_sends.give(tensor, rank, self._first_tag + tag)

    def expect(self, make_room: Callable[[], Tensor], rank: int, tag: int) -> PendingReceive:
        """Returns an object that reads another rank's offer; see PendingSends."""
        return self._group.pending_sends.expect(make_room, rank, self._first_tag + tag)

    def finish(self) -> None:
        """Waits until all sends have completed."""
        for _, work, what in self._sent:
            with Telling(f"sending {what}"):
                work.wait()
        self._sent.clear()


class Telling:
    """Adds the operation in progress to an error. A class, because a generator-based context is slower."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SmdpError):
            error.args = (
                f"{error.args[0] if error.args else ''} This happened while {self._what}.",
                *error.args[1:],
            )


def room_for(value: Value, strides: tuple[int, ...]) -> Tensor:
    """Returns an uninitialized tensor like the placeholder of a value."""
    ghost = value.ghost
    return torch.empty_strided(ghost.shape, strides, dtype=ghost.dtype, device=ghost.device)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Returns a tensor's strides if it is dense, or else the strides that it gets when it is sent."""
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def strides_of(value: Value) -> tuple[int, ...]:
    """Returns the strides with which a value is sent between stages.

    These are the strides of the owner's tensor. For some operations torch predicts different ones, and the
    rounding in kernels depends on strides.
    """
    return dense_strides(value.ghost) if value.strides is None else value.strides


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Returns a tensor with the strides with which it is sent."""
    # The stride of a dimension of size 1 is irrelevant.
    if all(
        own == other or size == 1
        for size, own, other in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.detach()
    )


def flat(tensor: Tensor) -> Tensor:
    """Returns all elements of a dense tensor in memory order, as a view."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))
