"""Converts torch's tensors, dtypes and reductions for the core."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from smdp.torch.process_group.cuda import CudaStaging

# torch dtype -> value of smdp::DType. 8-bit floats can be moved, but not reduced.
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

_OVERLAPS = 1  # at::MemOverlap::Yes, which torch's copy_() also checks; 2 means "too hard to tell"

# The hash of a ReduceOp is its kind. Reading `op.op` would take twice as long.
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
    """Returns the core's number for a dtype.

    Raises:
        TypeError: The core does not support the dtype.
    """
    code = DTYPES.get(dtype)
    if code is None:
        raise TypeError(f"smdp does not support tensors of {dtype}. To move them, view them as torch.uint8.")
    return code


def common_dtype(tensors: Sequence[Tensor]) -> int:
    """Returns the core's number for the dtype that all tensors share.

    Raises:
        TypeError: The dtypes differ, or the core does not support the dtype.
    """
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise TypeError(
                f"all tensors of one call must have the same dtype, but got {dtype} and {tensor.dtype}"
            )
    return dtype_code(dtype)


def reduction(op: ReduceOp) -> tuple[int, float]:
    """Returns the core's number for a reduction, and the factor of PREMUL_SUM, which is 1 for others.

    Raises:
        ValueError: The core does not support the reduction.
    """
    code = REDUCTIONS.get(hash(op))
    if code is None:
        raise ValueError(f"smdp does not support the reduction {op}")
    return code, float(op.factor) if code == PREMUL_SUM else 1.0


def is_plain(tensor: Tensor) -> bool:
    """Returns whether the core can work on the tensor's own memory."""
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
    except RuntimeError:  # a functorch or opaque tensor
        return False


class Staging:
    """Contiguous host copies of tensors that the core cannot work on, and the copies back.

    Call `ready` before the core starts reading, from any thread, and `finish` after it has ended.

    Args:
        call: The name of the call, for messages.
    """

    __slots__ = ("_call", "_copies", "_cuda")

    def __init__(self, call: str) -> None:
        self._call = call
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._cuda: CudaStaging | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """Returns a host tensor with the tensor's values."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=True, store=False)

    def write(self, tensor: Tensor) -> Tensor:
        """Returns a host tensor whose values `finish` copies to the tensor."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=False, store=True)

    def update(self, tensor: Tensor) -> Tensor:
        """Returns a host tensor with the tensor's values, whose values `finish` copies back."""
        return tensor if is_plain(tensor) else self._stage(tensor, load=True, store=True)

    def ready(self) -> None:
        """Waits until the values copied from a device have arrived."""
        if self._cuda is not None:
            self._cuda.wait_loaded()

    @property
    def is_late(self) -> bool:
        """Whether values are still on their way from a device, so that `ready` may block."""
        return self._cuda is not None

    @property
    def is_needed(self) -> bool:
        """Whether any tensor has been copied."""
        return bool(self._copies) or self._cuda is not None

    @property
    def has_results(self) -> bool:
        """Whether `finish` copies any results."""
        return bool(self._copies) or (self._cuda is not None and self._cuda.has_results)

    @property
    def cuda(self) -> CudaStaging | None:
        """The copies to and from a CUDA device, if the tensors are on one."""
        return self._cuda

    def finish(self) -> None:
        """Copies results to the tensors. For a device, the copies are only enqueued on a stream of smdp.

        Any thread may call it, since tensors made in inference mode are filled in that mode.
        """
        for target, host in self._copies:
            with torch.inference_mode(target.is_inference()), torch.no_grad():
                target.copy_(host)
        if self._cuda is not None:
            self._cuda.store()

    def order_stream(self) -> None:
        """Makes the current stream of the device, if any, wait for the copies that `finish` enqueued."""
        if self._cuda is not None:
            self._cuda.order_stream()

    def _stage(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
            cure = "its values" if tensor.is_nested else "tensor.to_dense()"
            raise TypeError(f"smdp supports dense tensors here, but got {kind}. Use {cure}.")
        if isinstance(tensor, AsyncCollectiveTensor):  # the pending result of a functional collective
            tensor = tensor.trigger_wait()
            return tensor if is_plain(tensor) else self._stage(tensor, load=load, store=store)
        if (tensor.is_cpu or tensor.is_cuda) and not _has_memory(tensor):
            raise TypeError(
                f"[smdp] {self._call}: a {type(tensor).__name__} of shape {list(tensor.shape)} has no memory"
                " to send. Pass a plain tensor; for a DTensor, pass tensor.to_local(). Fake and freed tensors"
                " have no memory, nor do tensors inside vmap and grad."
            )
        if store and torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
            raise ValueError(
                f"[smdp] {self._call}: an output of shape {list(tensor.shape)} and strides "
                f"{list(tensor.stride())} has several elements at the same memory address, as after expand(),"
                " so it cannot hold the results. Pass tensor.contiguous()."
            )
        with torch.no_grad():
            if tensor.is_cuda:
                if self._cuda is None:
                    self._cuda = CudaStaging(tensor.device)
                return self._cuda.stage(tensor, load=load, store=store)
            if not tensor.is_cpu:
                raise TypeError(
                    f"[smdp] {self._call}: smdp supports tensors on cpu and cuda, but one of shape"
                    f" {list(tensor.shape)} is on {tensor.device}."
                    + (" Call to_empty() to allocate a module that is on meta." if tensor.is_meta else "")
                )
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if load:
                host.copy_(tensor)
            if store:
                self._copies.append((tensor, host))
            return host
