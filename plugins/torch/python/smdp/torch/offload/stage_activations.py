"""What the stages of a pipeline have saved for backward, by stage and microbatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager

from torch import Tensor

from smdp.torch.offload.saved_tensors import LEAST_BYTES, KnownStorages, Record, Store, keys_of, saving


class StageActivations:
    """The saved tensors of one step. The schedule says when they leave and return.

    Args:
        store: Where they go.
        horizon: The most tasks whose tensors may be on their way out, or back for their backward, at once.
        kept: Tensors that stay in memory: parameters and buffers.
        least: The fewest bytes of a tensor that leaves.
    """

    def __init__(self, store: Store, horizon: int, kept: Iterable[Tensor], least: int = LEAST_BYTES) -> None:
        self._store = store
        self._horizon = horizon
        self._kept = frozenset(keys_of(kept))
        self._least = least
        self._known = KnownStorages()
        self._records: dict[tuple[int, int], Record] = {}
        self._leaving: deque[Record] = deque()
        self._returned: list[Record] = []

    def saving(self, stage: int, microbatch: int) -> AbstractContextManager[None]:
        """Returns the context in which a stage computes the forward of a microbatch."""
        key = stage, microbatch
        if key not in self._records:
            self._records[key] = Record(self._store, self._known, self._kept, self._least)
        return saving(self._records[key].pack)

    def leave(self, stage: int, microbatch: int) -> None:
        """Begins to move away what a stage has saved, once little enough is on its way.

        Raises:
            RuntimeError: The disk is full or has failed.
        """
        record = self._records.get((stage, microbatch))
        if record is None:
            return
        self._known.forget()
        record.begin_to_leave()
        self._leaving.append(record)
        self._make_room()

    def come_back(self, stage: int, microbatch: int) -> None:
        """Begins to bring back what a stage has saved."""
        record = self._records.get((stage, microbatch))
        if record is not None:
            self._returned.append(record)
            self._make_room()
            record.begin_to_return()

    def _make_room(self) -> None:
        self._returned = [each for each in self._returned if next(each.saved, None) is not None]
        while self._leaving and len(self._leaving) + len(self._returned) > self._horizon:
            self._leaving.popleft().has_left()

    def resident(self) -> dict[tuple[int, int], int]:
        """Returns the bytes in memory of each stage and microbatch that has some."""
        return {key: size for key, record in self._records.items() if (size := record.resident_bytes)}
