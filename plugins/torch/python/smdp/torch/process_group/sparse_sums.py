"""Conversion between torch's sparse COO tensors and the core's sparse sums."""

from __future__ import annotations

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.process_group.tensors import Staging, dtype_code


class SparseStaging(Staging):
    """A sparse tensor of this rank, and its sum over all ranks.

    Args:
        call: The name of the call, for messages.
        tensor: A tensor in the COO layout, or a dense tensor, which makes the sum dense on all ranks.
        is_in_place: Whether `finish` writes the sum to the tensor, which must be sparse.
        sparse_dims: The number of dimensions of a dense tensor that are sparse on the other ranks.

    Attributes:
        sum: The core's object for the sum.
    """

    __slots__ = ("_device", "_dtype", "_read", "_shape", "_sparse_dims", "_target", "sum")

    def __init__(self, call: str, tensor: Tensor, *, is_in_place: bool = False, sparse_dims: int = 1) -> None:
        super().__init__(call)
        self._target = tensor if is_in_place else None
        self._shape, self._dtype, self._device = tensor.shape, tensor.dtype, tensor.device
        code = dtype_code(tensor.dtype)
        tensor = tensor.detach()
        if not tensor.is_sparse:
            self._sparse_dims = sparse_dims
            host = self.read(tensor)
            self._read = [host]
            self.ready()
            self.sum = _core.SparseSum.of_dense(self._shape, sparse_dims, code, host.data_ptr())
            return
        self._sparse_dims = tensor.sparse_dim()
        indices, values = self.read(tensor._indices()), self.read(tensor._values())
        self._read = [indices, values]
        self.ready()
        self.sum = _core.SparseSum(
            self._shape,
            self._sparse_dims,
            code,
            indices.data_ptr(),
            values.data_ptr(),
            indices.shape[1],
            tensor.is_coalesced(),
        )

    @property
    def is_needed(self) -> bool:
        """Returns True, because the sum is not in the tensor's memory."""
        return True

    @property
    def has_results(self) -> bool:
        """Returns whether `finish` writes the sum to the tensor."""
        return self._target is not None

    def finish(self) -> None:
        """Writes the sum to the tensor, which is then coalesced."""
        target = self._target
        if target is not None:
            with torch.inference_mode(target.is_inference()), torch.no_grad():
                target.copy_(self.result())

    def result(self) -> Tensor:
        """Returns the sum as a new coalesced tensor, or a dense one if some rank's tensor was dense."""
        if self.sum.is_dense:
            dense = torch.empty(self._shape, dtype=self._dtype, device="cpu")
            self.sum.write(0, dense.data_ptr())
            return dense.to(self._device)
        count = self.sum.count
        indices = torch.empty((self._sparse_dims, count), dtype=torch.int64, device="cpu")
        row = self._shape[self._sparse_dims :]
        values = torch.empty((count, *row), dtype=self._dtype, device="cpu")
        self.sum.write(indices.data_ptr(), values.data_ptr())
        made = torch.sparse_coo_tensor(
            indices, values, self._shape, device="cpu", is_coalesced=True, check_invariants=False
        )
        return made.to(self._device)


def empty_like(tensor: Tensor, sparse_dims: int = 1) -> Tensor:
    """Returns a sparse tensor of the same shape, dtype and device without any elements."""
    return torch.sparse_coo_tensor(
        torch.empty((sparse_dims, 0), dtype=torch.int64, device=tensor.device),
        torch.empty((0, *tensor.shape[sparse_dims:]), dtype=tensor.dtype, device=tensor.device),
        tensor.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def whole_of(tensor: Tensor) -> Tensor:
    """Returns the base of a real view of a sparse complex tensor, and any other tensor unchanged.

    `torch.distributed` reduces complex tensors through such views. A view does not show the new rows of the
    sum, so the base must be reduced.
    """
    base = tensor._base
    return base if base is not None and base.is_sparse and base.is_complex() else tensor
