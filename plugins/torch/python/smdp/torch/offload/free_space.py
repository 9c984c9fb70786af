"""Which ranges of a pool file are free."""

from __future__ import annotations

import bisect


class FreeSpace:
    """The free ranges of a file, which grows at its end.

    Attributes:
        size: The number of bytes of the file, free and used.
    """

    def __init__(self) -> None:
        self.size = 0
        self._starts: list[int] = []  # of the free ranges, in order; neighbors are joined
        self._lengths: dict[int, int] = {}

    @property
    def free(self) -> int:
        """The number of free bytes."""
        return sum(self._lengths.values())

    def grow(self, length: int) -> None:
        """Adds free bytes at the end of the file."""
        self.size += length
        self.put_back(self.size - length, length)

    def take(self, length: int) -> int | None:
        """Returns the start of a range that is used from now on, or None if no free range is long enough."""
        for place, start in enumerate(self._starts):
            found = self._lengths[start]
            if found < length:
                continue
            del self._lengths[start]
            if found == length:
                del self._starts[place]
            else:
                self._starts[place] = start + length
                self._lengths[start + length] = found - length
            return start
        return None

    def missing(self, length: int) -> int:
        """Returns how many bytes the file must grow so that a range of this length is free at its end."""
        if self._starts and self._starts[-1] + self._lengths[self._starts[-1]] == self.size:
            return max(length - self._lengths[self._starts[-1]], 0)
        return length

    def put_back(self, start: int, length: int) -> None:
        """Frees a range, which is joined with its free neighbors."""
        place = bisect.bisect(self._starts, start)
        if place < len(self._starts) and self._starts[place] == start + length:
            length += self._lengths.pop(self._starts.pop(place))
        if place and (before := self._starts[place - 1]) + self._lengths[before] == start:
            self._lengths[before] += length
            return
        self._starts.insert(place, start)
        self._lengths[start] = length
