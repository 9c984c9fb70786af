"""Ends the step of ranks that wait for a rank whose step has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class ToldRanks:
    """Aborts the groups of a step that fails on this rank, so that no rank waits for it.

    The death of a rank ends only the calls of its own groups. Ranks of other groups would wait for survivors
    that have already stopped.

    Args:
        groups: Groups that only steps use.
        mesh: The mesh of a model that is divided, whose steps then end, too.
    """

    def __init__(self, groups: Sequence[ProcessGroupSmdp], mesh: ParallelMesh | None) -> None:
        self._groups = groups
        self._mesh = mesh
        if mesh is not None:
            mesh.abort_also(self, ToldRanks.abort)

    def abort(self, reason: str) -> None:
        """Ends the calls of the groups."""
        for group in self._groups:
            with contextlib.suppress(Exception):
                group.core.abort(reason)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Aborts the groups if the code in the context raises, with its message as the reason."""
        try:
            yield
        except Exception as error:
            reason = f"a step of a ShardedDataParallel failed: {str(error).removeprefix('[smdp] ')}"
            self.abort(reason)
            if self._mesh is not None:
                self._mesh.abort(reason)
            raise


class ToldAllGather(AllGather):
    """Gathers parameters, and tells the other ranks if this fails.

    Args:
        ranks: The other ranks.
    """

    def __init__(self, ranks: ToldRanks) -> None:
        self._ranks = ranks

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns memory for the gathered parameters."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Work | None:
        """Starts to gather, and waits for the end unless `async_op` is set."""
        with self._ranks.told():
            work = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return _ToldWork(work, self._ranks) if async_op else None


class _ToldWork(Work):
    def __init__(self, work: Work, ranks: ToldRanks) -> None:
        super().__init__()
        self._work, self._ranks = work, ranks

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._ranks.told():
            return bool(self._work.wait() if timeout is None else self._work.wait(timeout))
