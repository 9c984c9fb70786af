"""Collectives that reduce: all_reduce, reduce, reduce_scatter and their coalesced forms."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from torch import Tensor, sparse_coo, strided
from torch.distributed import Work
from torch.distributed.algorithms.join import Join
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from smdp._reduce_op import check_defined
from smdp.torch.process_group._calls import Calls, check_paired, pointers, single
from smdp.torch.process_group.sparse_sums import SparseStaging, whole_of
from smdp.torch.process_group.tensors import (
    DTYPES,
    PREMUL_SUM,
    REDUCTIONS,
    Staging,
    common_dtype,
    dtype_code,
    reduction,
)
from smdp.torch.process_group.work import COMPLETED, HandleWork, seconds_of

_ALL_REDUCE = AllreduceOptions()
_ALL_REDUCE_COALESCED = AllreduceCoalescedOptions()
_REDUCE = ReduceOptions()
_REDUCE_SCATTER = ReduceScatterOptions()

# The most stack frames between notify_join_context() and a method here.
_MOST_FRAMES = 8
# The Work that counts ranks in join(), by the object that joins.
_counts: weakref.WeakKeyDictionary[Any, Work] = weakref.WeakKeyDictionary()

# The complex dtypes, which alone have a conjugate bit.
_COMPLEX = range(10, 13)


class Reductions(Calls):
    """The collectives of the process group that reduce."""

    def allreduce(self, tensors: list[Tensor] | Tensor, opts: AllreduceOptions = _ALL_REDUCE) -> Work:
        """Reduces a tensor, or the only tensor of a list, over all ranks in place.

        This is the hot path, so the code of `Staging` and `reduction` for a plain tensor is repeated here.
        """
        if isinstance(tensors, Tensor):  # as torch's DDP passes it in join()
            tensor = tensors
        elif len(tensors) != 1:
            raise ValueError(f"all_reduce takes one tensor per process, but got {len(tensors)}")
        else:
            tensor = tensors[0]
        dtype = DTYPES.get(tensor.dtype)
        op = REDUCTIONS.get(hash(opts.reduceOp))
        if (
            dtype is None
            or op is None
            or op == PREMUL_SUM
            or not tensor.is_cpu
            or tensor.layout is not strided
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or (dtype in _COMPLEX and tensor.is_conj())
        ):
            return self._allreduce_staged(tensor, opts)
        try:
            pointer, shape = tensor.data_ptr(), tensor.shape
        except RuntimeError:  # a fake or nested tensor, or a tensor inside vmap
            return self._allreduce_staged(tensor, opts)
        if pointer == 0 and tensor.numel() != 0:  # a tensor that wraps other tensors
            return self._allreduce_staged(tensor, opts)
        self._sequence += 1
        timeout = opts.timeout
        handle = self._group.all_reduce(
            pointer,
            pointer,
            shape,
            dtype,
            op,
            1.0,
            self._timeout_s if timeout.days < 0 else seconds_of(timeout),
            opts.asyncOp,
        )
        return COMPLETED if handle is None else _kept_for_join(HandleWork((handle,), [tensor]), tensor)

    def _allreduce_staged(self, tensor: Tensor, opts: AllreduceOptions) -> Work:
        if tensor.layout is sparse_coo:
            return self._allreduce_rows(tensor, opts)
        dtype = dtype_code(tensor.dtype)
        op, factor = reduction(opts.reduceOp)
        staging = Staging("all_reduce")
        host = staging.update(tensor)
        arrival = self._arrival(staging, host, opts.asyncOp)
        self._sequence += 1
        pointer = host.data_ptr()
        handle = self._group.all_reduce(
            pointer, pointer, host.shape, dtype, op, factor, self._seconds(opts), opts.asyncOp, arrival
        )
        return _kept_for_join(self._end((handle,), [tensor], staging, host), tensor)

    def allreduce_sparse(self, tensors: list[Tensor] | Tensor, opts: AllreduceOptions = _ALL_REDUCE) -> Work:
        """Reduces a sparse COO tensor over all ranks in place."""
        return self.allreduce(tensors, opts)

    def _allreduce_rows(self, tensor: Tensor, opts: AllreduceOptions) -> Work:
        tensor = whole_of(tensor)
        op, factor = reduction(opts.reduceOp)
        staging = SparseStaging("all_reduce", tensor, is_in_place=True)
        self._sequence += 1
        handle = self._group.all_reduce_sparse(staging.sum, op, factor, self._seconds(opts), opts.asyncOp)
        return self._end((handle,), [tensor], staging)

    def allreduce_coalesced(
        self, tensors: list[Tensor], opts: AllreduceCoalescedOptions = _ALL_REDUCE_COALESCED
    ) -> Work:
        """Reduces several tensors over all ranks in place."""
        op, factor = reduction(opts.reduceOp)
        seconds = self._seconds(opts)
        dtypes = [dtype_code(tensor.dtype) for tensor in tensors]
        check_defined(op, dtypes, "all_reduce_coalesced")
        staging = Staging("all_reduce_coalesced")
        hosts = [staging.update(tensor) for tensor in tensors]
        self._check_coalesced("all_reduce_coalesced", [((), (host,)) for host in hosts])
        arrival = self._arrival(staging, hosts, opts.asyncOp)
        self._sequence += 1
        handles = [
            self._group.all_reduce(
                host.data_ptr(), host.data_ptr(), host.shape, dtype, op, factor, seconds, True, arrival
            )
            for host, dtype in zip(hosts, dtypes, strict=True)
        ]
        return self._end_coalesced(handles, tensors, staging, hosts, opts.asyncOp)

    def reduce(self, tensors: list[Tensor], opts: ReduceOptions = _REDUCE) -> Work:
        """Reduces a tensor over all ranks into the root's tensor."""
        tensor = single(tensors, "reduce")
        dtype = dtype_code(tensor.dtype)
        op, factor = reduction(opts.reduceOp)
        root = opts.rootRank
        staging = Staging("reduce")
        host = staging.update(tensor) if root == self._rank else staging.read(tensor)
        staging.ready()
        self._sequence += 1
        pointer = host.data_ptr()
        target = pointer if root == self._rank else 0
        handle = self._group.reduce(
            pointer, target, host.shape, dtype, op, factor, root, self._seconds(opts), opts.asyncOp
        )
        return self._end((handle,), tensors, staging, host)

    def reduce_scatter(
        self,
        output_tensors: list[Tensor],
        input_tensors: list[list[Tensor]],
        opts: ReduceScatterOptions = _REDUCE_SCATTER,
    ) -> Work:
        """Reduces a list of one tensor per rank, and gives each rank its own result. Sizes may differ."""
        output = single(output_tensors, "reduce_scatter")
        if len(input_tensors) != 1:
            raise ValueError(f"reduce_scatter takes one list of inputs, but got {len(input_tensors)}")
        inputs = input_tensors[0]
        self._check_list(inputs, "the input")
        dtype = common_dtype([output, *inputs])
        if inputs[self._rank].numel() != output.numel():
            raise ValueError(
                f"reduce_scatter: input {self._rank} has {inputs[self._rank].numel()} elements, but the"
                f" output of this rank has {output.numel()}"
            )
        op, factor = reduction(opts.reduceOp)
        staging = Staging("reduce_scatter")
        hosts = [staging.read(tensor) for tensor in inputs]
        target = staging.write(output)
        arrival = self._arrival(staging, (hosts, target), opts.asyncOp)
        self._sequence += 1
        handle = self._group.reduce_scatter(
            [host.data_ptr() for host in hosts],
            [host.numel() for host in hosts],
            target.data_ptr(),
            dtype,
            op,
            factor,
            self._seconds(opts),
            opts.asyncOp,
            [tensor.shape for tensor in inputs],
            arrival,
        )
        return self._end((handle,), output_tensors, staging, (hosts, target))

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: ReduceScatterOptions | None = _REDUCE_SCATTER
    ) -> Work:
        """Reduces a tensor with one equal part per rank, and gives each rank its own part."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: ReduceScatterOptions | None = _REDUCE_SCATTER,
    ) -> Work:
        """Performs `reduce_scatter_single` for several tensors."""
        opts = opts or _REDUCE_SCATTER
        op, factor = reduction(opts.reduceOp)
        seconds = self._seconds(opts)
        is_async = opts.asyncOp
        start_async = is_async or len(outputs) > 1
        staging = Staging("reduce_scatter")
        hosts = []
        check_paired(outputs, inputs, "reduce_scatter")
        for output, tensor in zip(outputs, inputs, strict=True):
            dtype = common_dtype((output, tensor))
            if tensor.numel() != output.numel() * self._size:
                raise ValueError(
                    f"reduce_scatter: the input has {tensor.numel()} elements, but needs"
                    f" {output.numel()} x {self._size} ranks = {output.numel() * self._size}"
                )
            hosts.append((staging.read(tensor), staging.write(output), dtype, tensor.shape))
        check_defined(op, (dtype for _, _, dtype, _ in hosts), "reduce_scatter")
        if len(hosts) > 1:
            used = [(read.view(-1).chunk(self._size), (write,)) for read, write, _, _ in hosts]
            self._check_coalesced("reduce_scatter", used)
        arrival = self._arrival(staging, hosts, is_async)
        self._sequence += 1
        handles = [
            self._group.reduce_scatter(
                pointers(source, self._size),
                [target.numel()] * self._size,
                target.data_ptr(),
                dtype,
                op,
                factor,
                seconds,
                start_async,
                [shape],
                arrival,
            )
            for source, target, dtype, shape in hosts
        ]
        if not start_async:
            return self._end(handles, outputs, staging)
        return self._end_coalesced(handles, outputs, staging, hosts, is_async)

    # The names of these methods before torch 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _kept_for_join(work: Work, tensor: Tensor) -> Work:
    """Keeps the Work that counts ranks in join() as long as the joining object, or until its next Work.

    torch's DDP keeps only the C++ object until backward. Without the Python object, its wait() would hang.
    """
    if tensor.numel() != 1:
        return work
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            break
        if frame.f_code is Join.notify_join_context.__code__:
            _counts[frame.f_locals["joinable"]] = work
            break
    return work
