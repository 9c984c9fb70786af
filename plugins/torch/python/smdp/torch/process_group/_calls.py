"""Helpers shared by all collectives: options, element counts and results."""

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
    """The attributes that all of torch's option classes have."""

    @property
    def timeout(self) -> timedelta: ...
    @property
    def asyncOp(self) -> bool: ...


class Calls:
    """State and helpers of the classes that implement torch's calls.

    Attributes:
        _group: The core's group.
        _rank: The rank of this process in the group.
        _size: The number of ranks in the group.
        _timeout_s: The timeout in seconds of calls that do not pass their own; negative for the core's.
        _sequence: The number of collectives started so far.
    """

    _group: Group
    _rank: int
    _size: int
    _timeout_s: float
    _sequence: int

    def _seconds(self, opts: Options) -> float:
        timeout = opts.timeout
        # torch passes -1 ms if the caller gave no timeout.
        return self._timeout_s if timeout.days < 0 else seconds_of(timeout)

    def _arrival(self, staging: Staging, keep: object, is_async: bool) -> Arrival | None:
        """Returns the arrival that the next operations must wait for, or None if their values are here."""
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
        """Returns the Work of started operations. A handle of None means that the operation has ended."""
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
        """Returns the Work of several asynchronous operations, after waiting for them unless `is_async`."""
        if not handles:
            return COMPLETED
        work = self._end(handles, tensors, staging, keep)
        if is_async:
            return work
        work.wait()
        return COMPLETED

    def _check_coalesced(self, call: str, used: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
        """Checks that no operation of a coalesced call writes memory that another one uses.

        Args:
            call: The name of the call, for the message.
            used: The tensors that each operation reads and writes: one for each rank, or this rank's alone.

        Raises:
            ValueError: Two operations share memory that one of them writes.
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
            raise ValueError(
                f"{what} needs one tensor per rank, {self._size} in total, but got {len(tensors)}"
            )


def check_paired(outputs: Sequence[Tensor], inputs: Sequence[Tensor], call: str) -> None:
    """Checks that a coalesced call has as many outputs as inputs.

    Raises:
        ValueError: The numbers differ.
    """
    if len(outputs) != len(inputs):
        raise ValueError(
            f"{call}: got {len(outputs)} outputs for {len(inputs)} inputs. Pass one output for each input."
        )


def single(tensors: Sequence[Tensor], call: str) -> Tensor:
    """Returns the only tensor of a list.

    Raises:
        ValueError: The list does not have exactly one tensor.
    """
    if len(tensors) != 1:
        raise ValueError(f"{call} takes one tensor per process, but got {len(tensors)}")
    return tensors[0]


def pointers(tensor: Tensor, parts: int) -> list[int]:
    """Returns the addresses of equal parts of a contiguous tensor."""
    base = tensor.data_ptr()
    step = tensor.numel() // parts * tensor.element_size()
    return [base + step * part for part in range(parts)]


def split_pointers(tensor: Tensor, counts: Sequence[int]) -> list[int]:
    """Returns the addresses of consecutive parts with `counts` elements."""
    address = tensor.data_ptr()
    addresses = []
    for count in counts:
        addresses.append(address)
        address += count * tensor.element_size()
    return addresses


def split_counts(tensor: Tensor, splits: Sequence[int], parts: int, what: str) -> list[int]:
    """Converts split sizes along the first dimension to element counts.

    Args:
        tensor: The tensor to split.
        splits: One size in rows per part, or empty for equal parts.
        parts: The number of parts.
        what: The name of the tensor, for messages.

    Returns:
        The number of elements of each part.

    Raises:
        ValueError: The sizes do not add up to the rows, or the rows cannot be divided equally.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % parts:
            raise ValueError(
                f"the {what} has {rows} rows, which cannot be divided equally among {parts} ranks. Pass split"
                " sizes."
            )
        return [tensor.numel() // parts] * parts
    if len(splits) != parts:
        raise ValueError(f"the {what} needs one split size per rank, {parts} in total, but got {len(splits)}")
    if sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"the split sizes {list(splits)} of the {what} must not be negative and must add up to its"
            f" {rows} rows"
        )
    row = tensor.numel() // rows if rows else 0
    return [size * row for size in splits]
