"""What the core must know of torch's tensors: dtypes, reductions, contiguous host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from smdp.torch.process_group.cuda import CudaStaging

# torch dtype -> value of smdp::DType. All 8-bit floats are one: they are moved, never reduced.
DTYPES: dict[torch.dtype, int] = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.bfloat16: 7,
    torch.float32: 8,
    torch.float64: 9,
    torch.complex32: 10,
    torch.complex64: 11,
    torch.complex128: 12,
    torch.uint16: 13,
    torch.uint32: 14,
    torch.uint64: 15,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
    torch.float8_e8m0fnu: 21,
}

PREMUL_SUM = 2

_OVERLAPS = 1  # of at::MemOverlap, as torch's own copy_() asks; 2 is "too hard to tell"

# A ReduceOp's hash is its kind: the one cheap way to read it (`op.op` costs twice as much).
REDUCTIONS: dict[int, int] = {
    hash(kind): code
    for code, kind in enumerate(
        (
            ReduceOp.SUM,
            ReduceOp.AVG,
            ReduceOp.PREMUL_SUM,
            ReduceOp.PRODUCT,
            ReduceOp.MIN,
            ReduceOp.MAX,
            ReduceOp.BAND,
            ReduceOp.BOR,
            ReduceOp.BXOR,
        )
    )
}


def dtype_code(dtype: torch.dtype) -> int:
    """Give the core's number of a dtype.

    Raises:
        TypeError: The core does not move this dtype.
    """
    code = DTYPES.get(dtype)
    if code is None:
        raise TypeError(f"smdp does not move tensors of {dtype}; view them as torch.uint8")
    return code


def common_dtype(tensors: Sequence[Tensor]) -> int:
    """Give the core's number of the dtype which all tensors share.

    Raises:
        TypeError: They differ, or the core does not move it.
    """
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise TypeError(f"all tensors of one call need one dtype, got {dtype} and {tensor.dtype}")
    return dtype_code(dtype)


def reduction(op: ReduceOp) -> tuple[int, float]:
    """Give the core's number of a reduction and the factor of PREMUL_SUM, else 1.

    Raises:
        ValueError: The core has no such reduction.
    """
    code = REDUCTIONS.get(hash(op))
    if code is None:
        raise ValueError(f"smdp has no reduction {op}")
    return code, float(op.factor) if code == PREMUL_SUM else 1.0


def is_plain(tensor: Tensor) -> bool:
    """Tell whether the core can work on the tensor's own memory."""
    return bool(
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not (tensor.is_complex() and tensor.is_conj())
        and _has_memory(tensor)
    )


def _has_memory(tensor: Tensor) -> bool:
    try:
        return bool(tensor.data_ptr() != 0 or tensor.numel() == 0)
    except RuntimeError:  # one of functorch's, or opaque
        return False


class Staging:
    """Contiguous host tensors in place of those the core cannot work on, and the way back.

    Call `ready`, from any thread, before the core starts reading, and `finish` after it has ended.

    Args:
        call: Its name in errors.
    """

    __slots__ = ("_call", "_copies", "_cuda")

    def __init__(self, call: str) -> None:
        self._call = call
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._cuda: CudaStaging | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """Give a host tensor that holds the tensor's values."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=True, store=False)

    def write(self, tensor: Tensor) -> Tensor:
        """Give a host tensor whose values the tensor takes on in `finish`."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=False, store=True)

    def update(self, tensor: Tensor) -> Tensor:
        """Give a host tensor that does both."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=True, store=True)

    def ready(self) -> None:
        """Wait until what was copied from a device has arrived."""
        if self._cuda is not None:
            self._cuda.wait_loaded()

    @property
    def is_late(self) -> bool:
        """Whether values are still on their way from a device, so that `ready` may block."""
        return self._cuda is not None

    @property
    def is_needed(self) -> bool:
        """Whether any tensor is not the core's own memory."""
        return bool(self._copies) or self._cuda is not None

    @property
    def has_results(self) -> bool:
        """Whether `finish` copies anything."""
        return bool(self._copies) or (self._cuda is not None and self._cuda.has_results)

    @property
    def cuda(self) -> CudaStaging | None:
        """What copies to a device, if the tensors are on one."""
        return self._cuda

    def finish(self) -> None:
        """Copy results to the tensors; on a device this is only enqueued, on a stream of smdp's.

        The thread need not be in the modes of the call: tensors made in inference mode are filled in it.
        """
        for target, host in self._copies:
            with torch.inference_mode(target.is_inference()), torch.no_grad():
                target.copy_(host)
        if self._cuda is not None:
            self._cuda.store()

    def order_stream(self) -> None:
        """Let the current stream of the device, if any, wait for what `finish` enqueued."""
        if self._cuda is not None:
            self._cuda.order_stream()

    def _stage(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested ones" if tensor.is_nested else str(tensor.layout)
            cure = "its values" if tensor.is_nested else "tensor.to_dense()"
            raise TypeError(f"smdp moves dense tensors, got {kind}; use {cure}")
        if isinstance(tensor, AsyncCollectiveTensor):  # what a functional collective has under way
            tensor = tensor.trigger_wait()
            return tensor if is_plain(tensor) else self._stage(tensor, load=load, store=store)
        if (tensor.is_cpu or tensor.is_cuda) and not _has_memory(tensor):
            raise TypeError(
                f"[smdp] {self._call}: a {type(tensor).__name__} of shape {list(tensor.shape)} has no memory"
                " of its own, and only memory can be sent. Give it a plain tensor: the local part of a"
                " DTensor is .to_local(); fake and freed ones have none, nor those within vmap and grad."
            )
        if store and torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
            raise ValueError(
                f"[smdp] {self._call}: an output of shape {list(tensor.shape)} and strides "
                f"{list(tensor.stride())} has several elements in one place of memory (expand() makes such "
                "tensors), where results have no room. Give it tensor.contiguous()."
            )
        with torch.no_grad():
            if tensor.is_cuda:
                if self._cuda is None:
                    self._cuda = CudaStaging(tensor.device)
                return self._cuda.stage(tensor, load=load, store=store)
            if not tensor.is_cpu:
                raise TypeError(
                    f"[smdp] {self._call}: smdp moves tensors on cpu and cuda, and one of shape"
                    f" {list(tensor.shape)} is on {tensor.device}."
                    + (" Modules on meta get memory by to_empty()." if tensor.is_meta else "")
                )
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if load:
                host.copy_(tensor)
            if store:
                self._copies.append((tensor, host))
            return host
