"""Memory in which parameters exist once per host."""

from __future__ import annotations

import contextlib
import ctypes
import zlib
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp import SmdpError, _core
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharding.shard_layout import flattened

_ALIGNMENT = 64
_UNUSABLE = (
    " This happened while the ranks of a host updated the parameters that they share, so these may be partly"
    " old and partly new. Do not use or save them. Start the job again from the last checkpoint."
)


class HostParameters:
    """Memory that all ranks of a host map, for the parameters of a model.

    Args:
        group: The ranks that hold the same parameters.
        parameters: The parameters, with the same values on all ranks. They are not changed.
        names: Their names, for messages.

    Raises:
        ValueError: A parameter is not on the CPU, or has different values on some ranks.
        SmdpError: A host has too little memory.
    """

    def __init__(
        self, group: ProcessGroupSmdp, parameters: Sequence[Parameter], names: Sequence[str]
    ) -> None:
        _check_on_cpu(parameters, names)
        _check_same_values(group, parameters, names)
        # Each parameter, and the end of each fusion buffer, may need alignment.
        needed = sum(_aligned(each.nbytes) + 2 * _ALIGNMENT for each in parameters)
        self._memory = _core.HostMemory(group.core, needed)
        self._taken = 0
        self._trims_left = 3

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Returns the next part of the memory, as a one-dimensional tensor. All ranks take the same parts."""
        size = count * dtype.itemsize
        begin, self._taken = self._taken, self._taken + _aligned(size)
        if self._taken > self._memory.size:
            raise RuntimeError(f"[smdp] {self._taken} bytes of {self._memory.size} are taken.")
        if size == 0:
            return torch.empty(0, dtype=dtype)
        memory = (ctypes.c_byte * size).from_address(self._memory.data + begin)
        memory.__dict__["owner"] = self._memory  # it is unmapped with the last tensor
        return torch.frombuffer(memory, dtype=dtype)

    def await_host(self) -> None:
        """Waits until all ranks of this host have called it."""
        self._memory.await_host()

    def abort(self, reason: str) -> None:
        """Ends `await_host()` on all ranks of this host with this reason."""
        self._memory.abort(reason)

    def trim(self) -> None:
        """Returns memory that this rank has freed to the system, at first and after the first two steps.

        Before that, it had private parameters and all gradients, whose memory the C library would keep.
        """
        if self._trims_left:
            self._trims_left -= 1
            with contextlib.suppress(AttributeError):  # only glibc has it
                ctypes.CDLL(None).malloc_trim(0)

    def leave(self, parameters: Iterable[Parameter]) -> None:
        """Moves these parameters into private memory, where other optimizers may write to them."""
        shared = range(self._memory.data, self._memory.data + self._memory.size)
        with torch.no_grad():
            for parameter in parameters:
                if parameter.is_cpu and parameter.data_ptr() in shared:
                    own = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
                    parameter.data = own.copy_(parameter.detach())


def tell_unusable(error: BaseException) -> None:
    """Adds to an error of a step that the parameters must not be used any more."""
    if isinstance(error, SmdpError):
        error.args = (f"{error}{_UNUSABLE}",)


def _check_on_cpu(parameters: Sequence[Parameter], names: Sequence[str]) -> None:
    for name, parameter in zip(names, parameters, strict=True):
        if not parameter.is_cpu:
            raise ValueError(
                f"[smdp] ShardedOptimizer: share_parameters=True is for models on the CPU, and parameter"
                f" {name!r} is on {parameter.device}. Leave it out."
            )


def _check_same_values(
    group: ProcessGroupSmdp, parameters: Sequence[Parameter], names: Sequence[str]
) -> None:
    told = _gathered(group, [_checksum(parameter) for parameter in parameters])
    ranks = dist.get_process_group_ranks(group)
    for rank, theirs in zip(ranks, told, strict=True):
        for name, one, other in zip(names, told[0], theirs, strict=True):
            if one != other:
                raise ValueError(
                    f"[smdp] ShardedOptimizer: parameter {name!r} has other values on rank {rank} than on"
                    f" rank {ranks[0]}, and with share_parameters=True a host has one copy. Load"
                    " the same values on all ranks before you wrap the optimizer."
                )


def _checksum(parameter: Tensor) -> int:
    if not parameter.numel():
        return 0
    return zlib.crc32(flattened(parameter.detach()).view(torch.uint8).numpy())


def _gathered(group: ProcessGroupSmdp, own: Sequence[int]) -> list[list[int]]:
    told = [torch.empty(len(own), dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(told, torch.tensor(own, dtype=torch.int64), group=group)
    return [each.tolist() for each in told]


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
