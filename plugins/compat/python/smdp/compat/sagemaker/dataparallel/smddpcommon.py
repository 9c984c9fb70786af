"""`smddpcommon` and `herringcommon`: sums of memory given by address, as SMDDP's benchmarks use them."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

import smdp
from smdp import _core
from smdp._buffers import DType

herringFloat16 = int(DType.FLOAT16)
herringFloat32 = int(DType.FLOAT32)

_BYTES = {herringFloat16: 2, herringFloat32: 4}
_libc = ctypes.CDLL(None)


@dataclass
class Task:
    """A sum that is in progress."""

    request: _core.Handle


def setBucketSize(bytes: int) -> None:
    """Does nothing: the cost model chooses the buffer sizes."""


def allReduce(
    in_ptr: int, out_ptr: int, dtype: int, numel: int, param_index: int, num_params: int, task_id: int
) -> Task:
    """Sums `numel` elements at an address over all ranks.

    Args:
        in_ptr: Address of the input.
        out_ptr: Address of the result; may be the same as `in_ptr`.
        dtype: herringFloat16 or herringFloat32.
        numel: Number of elements.
        param_index: Not used. All ranks must make the same calls in the same order.
        num_params: Not used.
        task_id: Not used.

    Raises:
        RuntimeError: torch.distributed was started over another backend.
        ValueError: The dtype is not supported, or an address does not point to host memory.
    """
    if dtype not in _BYTES:
        raise ValueError(
            f"[smdp] smddpcommon.allReduce: dtype is {dtype}; allowed: herringFloat16, herringFloat32."
        )
    size = numel * _BYTES[dtype]
    for name, address in (("in_ptr", in_ptr), ("out_ptr", out_ptr)):
        if size and not _is_readable(address, size):
            raise ValueError(
                f"[smdp] smddpcommon.allReduce: {name} is {address:#x}, where {size} bytes of host memory are"
                " needed. Use torch.distributed.all_reduce, which also takes tensors on a GPU."
            )
    return Task(_group().all_reduce(in_ptr, out_ptr, [numel], dtype, int(smdp.SUM), 1.0, -1.0, True))


def wait(request: _core.Handle) -> None:
    """Waits until the sum is done."""
    request.wait()


def _is_readable(address: int, size: int) -> bool:
    """Returns whether the kernel can read the first and the last byte. It cannot read GPU memory."""
    reader, writer = os.pipe()
    try:
        ends = (address, address + size - 1)
        return all(_libc.write(writer, ctypes.c_void_p(end), ctypes.c_size_t(1)) == 1 for end in ends)
    finally:
        os.close(reader)
        os.close(writer)


def _group() -> _core.Group:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return smdp.world().core
    core: _core.Group | None = getattr(dist.distributed_c10d._get_default_group(), "core", None)
    if core is None:
        raise RuntimeError(
            f"[smdp] smddpcommon.allReduce: torch.distributed was started over {dist.get_backend()!r}; sums"
            ' by address need init_process_group("smddp").'
        )
    return core
