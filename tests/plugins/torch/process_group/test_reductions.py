"""The collectives that add, against sums computed in one process; coalesced calls and Futures."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch_spawn import run
from torch_values import COMPLEX, INTEGERS, REAL, SHAPES, fold, layouts, same, value, values


def check_all_reduce() -> None:
    size = dist.get_world_size()
    for dtype, shape, async_op in itertools.product(
        [*REAL, *INTEGERS, torch.bool, *COMPLEX], SHAPES, [False, True]
    ):
        expected = fold(torch.logical_or if dtype is torch.bool else torch.add, values(shape, dtype))
        for tensor in layouts(value(dist.get_rank(), shape, dtype)):
            work = dist.all_reduce(tensor, async_op=async_op)
            assert (work is not None) == async_op
            if work is not None:
                assert work.wait() is True
                assert work.is_completed()
                assert work.is_success()
                assert work.exception() is None
            same(tensor, expected, ("all_reduce", dtype, shape))
    for op, function, dtypes in [
        (ReduceOp.PRODUCT, torch.mul, [*REAL, *INTEGERS]),
        (ReduceOp.MIN, torch.minimum, [*REAL, *INTEGERS]),
        (ReduceOp.MAX, torch.maximum, [*REAL, *INTEGERS]),
        (ReduceOp.BAND, torch.bitwise_and, [*INTEGERS, torch.bool]),
        (ReduceOp.BOR, torch.bitwise_or, [*INTEGERS, torch.bool]),
        (ReduceOp.BXOR, torch.bitwise_xor, [*INTEGERS, torch.bool]),
    ]:
        for dtype in dtypes:
            tensor = value(dist.get_rank(), (11,), dtype)
            dist.all_reduce(tensor, op=op)
            same(tensor, fold(function, values((11,), dtype)), (op, dtype))
    for dtype in REAL:
        tensor = value(dist.get_rank(), (9,), dtype)
        dist.all_reduce(tensor, op=ReduceOp.AVG)
        expected = (fold(torch.add, [v.double() for v in values((9,), dtype)]) / size).to(dtype)
        torch.testing.assert_close(tensor, expected)
        tensor = value(dist.get_rank(), (9,), dtype)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
        same(tensor, (fold(torch.add, values((9,), dtype)) * 0.5).to(dtype), "premul")


def check_refusals() -> None:
    with pytest.raises((ValueError, TypeError)):
        dist.all_reduce(torch.ones(4), op=ReduceOp.BAND)
    with pytest.raises((ValueError, TypeError)):
        dist.all_reduce(torch.ones(4).to(torch.float8_e5m2))
    with pytest.raises(TypeError, match="meta"):
        dist.all_reduce(torch.empty(3, device="meta"))
    with pytest.raises(ValueError, match="ranks"):
        dist.all_gather_single(torch.empty(1), torch.empty(3))
    with pytest.raises(TypeError, match="dtype"):
        dist.group.WORLD.allgather([[torch.empty(1)] * dist.get_world_size()], [torch.empty(1).double()])
    # One that is refused keeps those before it from being sent.
    group, size = dist.group.WORLD, dist.get_world_size()
    fine, wrong = torch.ones(size), torch.ones(size, dtype=torch.uint32)
    with pytest.raises(ValueError, match="all_reduce_coalesced: SUM is not defined on uint32"):
        group.allreduce_coalesced([fine, wrong])
    part = torch.zeros(1)
    with pytest.raises(ValueError, match="reduce_scatter: SUM is not defined on uint32"):
        group.reduce_scatter_tensor_coalesced([part, wrong[:1]], [fine, wrong])
    with pytest.raises(ValueError, match="arrays 0 and 2 share 4 bytes of memory"):
        group.allreduce_coalesced([fine, torch.ones(2), fine[:1]])
    with pytest.raises(ValueError, match="arrays 0 and 1 share 4 bytes of memory"):
        group.reduce_scatter_tensor_coalesced([part, fine[:1]], [fine, torch.ones(size)])
    with pytest.raises(ValueError, match="arrays 0 and 1 share"):
        group.allgather_into_tensor_coalesced([fine, fine], [part, part])
    dist.barrier()
    assert fine.eq(1).all() and part.item() == 0
    with pytest.raises(NotImplementedError, match="barrier"):
        dist.group.WORLD.monitored_barrier()
    with pytest.raises(NotImplementedError, match="new_group"):
        dist.group.WORLD.split_group([0])
    dist.barrier()


def check_special_tensors() -> None:
    size = dist.get_world_size()
    group = dist.group.WORLD
    conjugate = value(dist.get_rank(), (5,), torch.complex64).conj()
    negative = torch._neg_view(value(dist.get_rank(), (5,), torch.float32))
    group.allreduce([conjugate]).wait()
    group.allreduce([negative]).wait()
    same(conjugate.resolve_conj(), fold(torch.add, values((5,), torch.complex64)).conj().resolve_conj())
    same(negative.resolve_neg(), -fold(torch.add, values((5,), torch.float32)))
    parameter = torch.nn.Parameter(torch.ones(3, 4).t())
    dist.all_reduce(parameter)
    same(parameter.detach(), torch.full((4, 3), float(size)))
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40])
    dist.all_reduce(special, op=ReduceOp.MAX)
    assert torch.isnan(special[0])
    assert torch.isinf(special[1])


def check_reduce() -> None:
    for dtype, root, async_op in itertools.product(
        [torch.float32, torch.int64], range(dist.get_world_size()), [False, True]
    ):
        for tensor in layouts(value(dist.get_rank(), (3, 5), dtype)):
            work = dist.reduce(tensor, root, async_op=async_op)
            if work is not None:
                work.wait()
            if root == dist.get_rank():
                same(tensor, fold(torch.add, values((3, 5), dtype)), "reduce")


def check_reduce_scatter() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype, shape, async_op in itertools.product([*REAL, torch.int32], SHAPES[1:], [False, True]):
        inputs = [value(rank + part, shape, dtype) for part in range(size)]
        expected = fold(torch.add, [value(other + rank, shape, dtype) for other in range(size)])
        for output in layouts(torch.zeros(shape, dtype=dtype)):
            work = dist.reduce_scatter(output, inputs, async_op=async_op)
            if work is not None:
                work.wait()
            same(output, expected, ("reduce_scatter", dtype, shape))
            work = dist.reduce_scatter_single(output.zero_(), torch.cat(inputs), async_op=async_op)
            if work is not None:
                work.wait()
            same(output, expected, ("reduce_scatter_single", dtype, shape))
    output = torch.zeros(4)
    dist.reduce_scatter_single(output, torch.ones(4 * size), op=ReduceOp.AVG)
    same(output, torch.ones(4), "reduce_scatter avg")
    dist.reduce_scatter_single(output, torch.ones(4 * size), op=dist._make_nccl_premul_sum(0.25))
    same(output, torch.full((4,), size * 0.25), "reduce_scatter premul")
    # Sizes that differ between ranks.
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, [torch.ones(part + 1) for part in range(size)])
    same(output, torch.full((rank + 1,), float(size)), "uneven reduce_scatter")


def check_coalesced() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    shapes: list[tuple[int, ...]] = [(3,), (2, 2), (0,)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [value(rank, shape, torch.float32) for shape in shapes]
        dist.all_reduce_coalesced(tensors)
        for tensor, shape in zip(tensors, shapes, strict=True):
            same(tensor, fold(torch.add, values(shape, torch.float32)), "all_reduce_coalesced")
        inputs = [value(rank, shape, torch.float32) for shape in shapes]
        lists = [[torch.zeros(shape) for shape in shapes] for _ in range(size)]
        dist.all_gather_coalesced(lists, inputs)
        for other, got in enumerate(lists):
            for tensor, shape in zip(got, shapes, strict=True):
                same(tensor, value(other, shape, torch.float32), "all_gather_coalesced")
    tensors = [value(rank, (3,), torch.float32) for _ in range(3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, fold(torch.add, values((3,), torch.float32)), "coalescing manager")
    outputs = [torch.zeros(size * 2) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager():
        for output in outputs:
            dist.all_gather_single(output, torch.full((2,), float(rank)))
    for output in outputs:
        same(output, torch.arange(size).repeat_interleave(2).float(), "coalesced all_gather")
    shards = [torch.zeros(2) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager():
        for shard in shards:
            dist.reduce_scatter_single(shard, torch.ones(2 * size))
    for shard in shards:
        same(shard, torch.full((2,), float(size)), "coalesced reduce_scatter")


def check_futures_and_overlap() -> None:
    size = dist.get_world_size()
    tensors = [torch.full((1000 + index,), 1.0) for index in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
    for tensor, future, work in zip(tensors, doubled, works, strict=True):
        same(future.wait(), torch.full(tensor.shape, 2.0 * size), "future")
        same(work.result()[0], tensor)
    for _ in range(5):  # dropped in flight: nothing is freed under the core's hands
        dist.all_reduce(torch.ones(5, 200).t(), async_op=True)
    dist.barrier()
    dist.barrier(async_op=True).wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dist.group.WORLD._get_sequence_number_for_group() > 20


def reductions() -> None:
    for check in (
        check_all_reduce,
        check_refusals,
        check_special_tensors,
        check_reduce,
        check_reduce_scatter,
        check_coalesced,
        check_futures_and_overlap,
    ):
        check()
        print(check.__name__, "passed")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions(size: int) -> None:
    run(reductions, size)


def test_debug_detail_is_harmless() -> None:
    run(check_coalesced, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
