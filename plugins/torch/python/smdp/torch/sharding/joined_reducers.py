"""Several gradient reducers, numbered through like one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smdp import _core


@dataclass(frozen=True)
class JoinedBuffer:
    """A fusion buffer of one of the reducers; see `_core.ShardedBuffer`."""

    count: int
    is_alone: bool
    members: list[tuple[int, int, int]]
    owned: list[tuple[int, int]]


class JoinedReducers:
    """The reducers of gradients that are averaged in several lists, whose means are owned in shards.

    Args:
        reducers: The reducers, with the number of gradients of each.

    Attributes:
        sharded_buffers: The buffers of all reducers. A gradient's index counts through all lists.
    """

    def __init__(self, reducers: Sequence[tuple[_core.GradientReducer, int]]) -> None:
        self._reducers = [reducer for reducer, _ in reducers]
        self.sharded_buffers: list[JoinedBuffer] = []
        self._place: list[tuple[_core.GradientReducer, int]] = []  # reducer of each buffer, and number in it
        first = 0
        for reducer, gradients in reducers:
            for number, buffer in enumerate(reducer.sharded_buffers):
                members = [(first + index, offset, count) for index, offset, count in buffer.members]
                self.sharded_buffers.append(
                    JoinedBuffer(buffer.count, buffer.is_alone, members, buffer.owned)
                )
                self._place.append((reducer, number))
            first += gradients

    def means(self, number: int) -> int:
        """Returns the address of a buffer's means, valid until the next step."""
        reducer, inner = self._place[number]
        return reducer.means(inner)

    def abort(self, reason: str) -> None:
        """Ends the operations of all ranks with this reason."""
        for reducer in self._reducers:
            reducer.abort(reason)

    def gather(self, data: Sequence[int], is_once_per_host: bool = False) -> JoinedGather:
        """Begins to send what each rank owns of `data`, by buffer the address of its memory. Collective.

        Args:
            data: The addresses.
            is_once_per_host: Whether the ranks of a host have the same memory.
        """
        gathers: list[_core.ParameterGather] = []
        first = 0
        for reducer in self._reducers:
            count = len(reducer.sharded_buffers)
            gathers.append(reducer.gather(data[first : first + count], is_once_per_host))
            first += count
        of_reducer = dict(zip(map(id, self._reducers), gathers, strict=True))
        return JoinedGather(gathers, [(of_reducer[id(reducer)], inner) for reducer, inner in self._place])


class JoinedGather:
    """Parameters of several reducers on their way to all ranks; see `_core.ParameterGather`.

    Args:
        gathers: One for each reducer.
        place: The gather of each buffer, and its number there.
    """

    def __init__(
        self,
        gathers: Sequence[_core.ParameterGather],
        place: Sequence[tuple[_core.ParameterGather, int]],
    ) -> None:
        self._gathers = gathers
        self._place = place

    def ready(self, number: int) -> None:
        """Lets a buffer travel, whose elements of this rank are complete."""
        gather, inner = self._place[number]
        gather.ready(inner)

    def wait_for(self, number: int) -> None:
        """Waits for a buffer."""
        gather, inner = self._place[number]
        gather.wait_for(inner)

    def wait(self) -> None:
        """Waits for all buffers."""
        for gather in self._gathers:
            gather.wait()
