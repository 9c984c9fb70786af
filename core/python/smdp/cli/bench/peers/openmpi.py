"""Open MPI, through mpi4py; the workers must have been started by mpirun."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smdp._errors import SmdpError
from smdp.cli.bench.peers.base import Peer, Work, numpy_buffers, numpy_work


class OpenMpi(Peer):
    """MPI_COMM_WORLD."""

    name = "openmpi"

    def __init__(self, rank: int, ranks: int) -> None:
        self._mpi: Any = importlib.import_module("mpi4py.MPI")
        self._comm: Any = self._mpi.COMM_WORLD
        found = (self._comm.Get_rank(), self._comm.Get_size())
        if found != (rank, ranks):
            raise SmdpError(
                f"openmpi: this process is rank {found[0]} of {found[1]} according to MPI, but rank {rank} of"
                f" {ranks} according to the launcher; mpi4py and mpirun use different MPI libraries"
            )
        self._ranks = ranks

    def prepare(self, operation: str, total: int, dtype: str) -> Work:
        """Allocates NumPy arrays; see Peer.prepare()."""
        source, result = numpy_buffers(operation, total, dtype, self._ranks)
        return numpy_work(self._call(operation, source, result), source, result)

    def _call(self, operation: str, source: Any, result: Any) -> Callable[[], object]:
        comm = self._comm
        if operation == "all_reduce":
            return lambda: comm.Allreduce(source, result)
        if operation == "reduce_scatter":
            return lambda: comm.Reduce_scatter_block(source, result)
        if source.dtype.itemsize == 2:
            source, result = source.view(np.int16), result.view(np.int16)
        if operation == "all_gather":
            return lambda: comm.Allgather(source, result)
        if operation == "broadcast":
            return lambda: comm.Bcast(source, 0)
        return lambda: comm.Alltoall(source, result)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._comm.Barrier()

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Returns the maximum of each value over all ranks."""
        array = np.array(values, dtype=np.float64)
        self._comm.Allreduce(self._mpi.IN_PLACE, array, op=self._mpi.MAX)
        return [float(value) for value in array]

    def close(self) -> None:
        """Leaves the world."""
        self._mpi.Finalize()
