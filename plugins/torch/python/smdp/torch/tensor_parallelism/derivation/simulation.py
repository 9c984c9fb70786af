"""The ranks of a tensor axis as threads of this process, on which a division is tried."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_Result = TypeVar("_Result")

# A rank computes on a few small tensors between two collectives.
_TIMEOUT_S = 60.0


class SimulatedAxis(TensorAxis):
    """A rank of the axis. Its group sums the tensors of the threads.

    Args:
        mesh: A mesh with the rank's place.
        meeting: Where the threads exchange tensors.
    """

    def __init__(self, mesh: ParallelMesh, meeting: _Meeting) -> None:
        super().__init__(mesh)
        self._meeting = meeting

    @property
    def is_across_hosts(self) -> bool:
        """Whether the ranks are on several hosts: no, in one process."""
        return False

    @property
    def group(self) -> Any:
        """The group, which has the calls that divided layers make."""
        return self

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> SimulatedAxis:
        """Sums tensors over the ranks in place."""
        for tensor in tensors:
            parts = self._meeting.exchange(self.rank, tensor.clone())
            if any(part is None or part.shape != tensor.shape for part in parts):
                raise RuntimeError("the ranks do not sum the same tensors")
            tensor.copy_(torch.stack(parts).sum(0))
        return self

    def wait(self) -> bool:
        """Returns at once, because sums are complete."""
        return True


class _Meeting:
    """Threads that exchange values. If one of them fails, all do."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self._values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Returns the values of all threads."""
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def abort(self) -> None:
        """Makes the others fail, instead of waiting for this thread."""
        self._barrier.abort()


def on_simulated_ranks(size: int, function: Callable[[SimulatedAxis], _Result]) -> list[_Result]:
    """Runs a function on threads that communicate like ranks.

    Args:
        size: The number of ranks.
        function: Takes the axis of its rank. It may only sum tensors.

    Returns:
        The result of each rank.

    Raises:
        Exception: The error of the first rank that failed by itself.
    """
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = function(SimulatedAxis(ParallelMesh(tp=size, rank=rank), meeting))
            # A rank that sums more tensors than another one meets this exchange, and fails.
            if any(value is not None for value in meeting.exchange(rank, None)):
                raise RuntimeError("the ranks do not sum the same tensors")
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors[rank] = error
            meeting.abort()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [error for error in errors if error is not None]
    own = [error for error in found if not isinstance(error, threading.BrokenBarrierError)]
    if found:
        raise (own or found)[0]
    return results
