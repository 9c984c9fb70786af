"""What the collectives share: options, counts, and how a call ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from torch import Tensor
from torch.distributed import Work

from smdp._overlap import check_apart, regions
from smdp.torch.process_group import arrivals
from smdp.torch.process_group.tensors import Staging
from smdp.torch.process_group.work import COMPLETED, HandleWork, seconds_of

if TYPE_CHECKING:
    from smdp._core import Arrival, Group, Handle


class Options(Protocol):
    """What all of torch's option classes have."""

    @property
    def timeout(self) -> timedelta: ...
    @property
    def asyncOp(self) -> bool: ...


class Calls:
    """State and helpers of the classes that implement torch's calls.

    Attributes:
        _group: The core's group.
        _rank: This process within the group.
        _size: Processes in the group.
        _timeout_s: Timeout of calls that name none; negative: the core's.
        _sequence: Number of collectives started.
    """

    _group: Group
    _rank: int
    _size: int
    _timeout_s: float
    _sequence: int

    def _seconds(self, opts: Options) -> float:
        timeout = opts.timeout
        # torch says -1 ms where the caller gave no timeout.
        return self._timeout_s if timeout.days < 0 else seconds_of(timeout)

    def _arrival(self, staging: Staging, keep: object, is_async: bool) -> Arrival | None:
        """Give what the operations that are started next wait for; None where their values are there."""
        if is_async and staging.is_late:
            return arrivals.expect(staging, keep, self._group)
        staging.ready()
        return None

    def _end(
        self,
        handles: Sequence[Handle | None],
        tensors: list[Tensor],
        staging: Staging,
        keep: object = None,
    ) -> Work:
        """Give the Work of operations that were started, or have already ended (handles of None)."""
        pending = [handle for handle in handles if handle is not None]
        if pending:
            return HandleWork(pending, tensors, keep, staging if staging.is_needed else None)
        if staging.is_needed:
            staging.finish()
            staging.order_stream()
        return COMPLETED

    def _end_coalesced(
        self,
        handles: Sequence[Handle | None],
        tensors: list[Tensor],
        staging: Staging,
        keep: object,
        is_async: bool,
    ) -> Work:
        """Give the Work of several operations started asynchronously; wait for them unless `is_async`."""
        if not handles:
            return COMPLETED
        work = self._end(handles, tensors, staging, keep)
        if is_async:
            return work
        work.wait()
        return COMPLETED

    def _check_coalesced(self, call: str, used: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
        """Refuse operations of one call that write what another of them uses.

        Args:
            call: Its name in errors.
            used: Per operation what it reads and what it writes: a tensor for each rank, or this rank's.

        Raises:
            ValueError: Two share memory.
        """
        check_apart(
            call,
            [
                region
                for number, both in enumerate(used)
                for writes, tensors in zip((False, True), both, strict=True)
                for region in regions(
                    number,
                    [tensor.data_ptr() for tensor in tensors],
                    [tensor.nbytes for tensor in tensors],
                    self._rank,
                    writes=writes,
                )
            ],
        )

    def _check_list(self, tensors: Sequence[Tensor], what: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{what} needs one tensor per rank: {self._size}, got {len(tensors)}")


def check_paired(outputs: Sequence[Tensor], inputs: Sequence[Tensor], call: str) -> None:
    """Refuse a coalesced call with more of one than of the other.

    Raises:
        ValueError: There are not as many outputs as inputs.
    """
    if len(outputs) != len(inputs):
        raise ValueError(f"{call}: {len(outputs)} outputs for {len(inputs)} inputs; give one for each")


def single(tensors: Sequence[Tensor], call: str) -> Tensor:
    """Give the only tensor of a list.

    Raises:
        ValueError: There is not exactly one.
    """
    if len(tensors) != 1:
        raise ValueError(f"{call} takes one tensor per process, got {len(tensors)}")
    return tensors[0]


def pointers(tensor: Tensor, parts: int) -> list[int]:
    """Give the addresses of equal parts of a contiguous tensor."""
    base = tensor.data_ptr()
    step = tensor.numel() // parts * tensor.element_size()
    return [base + step * part for part in range(parts)]


def split_pointers(tensor: Tensor, counts: Sequence[int]) -> list[int]:
    """Give the addresses of consecutive parts of `counts` elements."""
    address = tensor.data_ptr()
    addresses = []
    for count in counts:
        addresses.append(address)
        address += count * tensor.element_size()
    return addresses


def split_counts(tensor: Tensor, splits: Sequence[int], parts: int, what: str) -> list[int]:
    """Turn split sizes along the first dimension into numbers of elements.

    Args:
        tensor: What is split.
        splits: One size per part; empty for equal parts.
        parts: How many.
        what: Its name in errors.

    Raises:
        ValueError: The sizes do not add up.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % parts:
            raise ValueError(f"the {what} has {rows} rows, not divisible among {parts} ranks")
        return [tensor.numel() // parts] * parts
    if len(splits) != parts:
        raise ValueError(f"the {what} needs one split size per rank: {parts}, got {len(splits)}")
    if sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"split sizes {list(splits)} of the {what} do not add up to its {rows} rows")
    row = tensor.numel() // rows if rows else 0
    return [size * row for size in splits]
