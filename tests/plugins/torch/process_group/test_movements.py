"""The collectives that move without adding, against what each rank should get."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_spawn import run
from torch_values import COMPLEX, INTEGERS, MOVED, REAL, SHAPES, layouts, same, value, values


def check_broadcast() -> None:
    size = dist.get_world_size()
    for dtype, shape in itertools.product([*REAL, *INTEGERS, torch.bool, *COMPLEX, *MOVED], SHAPES):
        for root, async_op in [(0, False), (size - 1, True)]:
            for tensor in layouts(value(dist.get_rank(), shape, dtype)):
                work = dist.broadcast(tensor, root, async_op=async_op)
                if work is not None:
                    work.wait()
                same(tensor, value(root, shape, dtype), ("broadcast", dtype, shape))


def check_all_gather() -> None:
    size = dist.get_world_size()
    for dtype, shape, async_op in itertools.product(
        [torch.float32, torch.bfloat16, torch.bool, torch.complex64, *MOVED], SHAPES, [False, True]
    ):
        for tensor in layouts(value(dist.get_rank(), shape, dtype)):
            outputs = [next(reversed(list(layouts(torch.zeros_like(tensor))))) for _ in range(size)]
            work = dist.all_gather(outputs, tensor, async_op=async_op)
            if work is not None:
                work.wait()
            for output, expected in zip(outputs, values(shape, dtype), strict=True):
                same(output, expected, ("all_gather", dtype, shape))
            if dtype.is_complex or not shape:
                continue
            whole = torch.zeros(size * shape[0], *shape[1:], dtype=dtype)
            work = dist.all_gather_single(whole, tensor, async_op=async_op)
            if work is not None:
                work.wait()
            same(whole, torch.cat(values(shape, dtype)), ("all_gather_single", dtype, shape))
    # Sizes that differ between ranks.
    mine = torch.full((dist.get_rank() + 1,), dist.get_rank())
    outputs = [torch.zeros(rank + 1, dtype=torch.int64) for rank in range(size)]
    dist.all_gather(outputs, mine)
    for rank, output in enumerate(outputs):
        same(output, torch.full((rank + 1,), rank), "uneven all_gather")
    # An input that is another rank's output, on all ranks but one.
    outputs = [torch.full((3,), float(dist.get_rank())) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, outputs[0])
    for rank, output in enumerate(outputs):
        same(output, torch.full((3,), float(rank)), "all_gather of an output")
    whole = torch.full((dist.get_world_size(), 3), float(dist.get_rank()))
    dist.all_gather_single(whole, whole[0])
    same(whole[:, 0], torch.arange(float(dist.get_world_size())), "all_gather_single of a part of the output")


def check_all_to_all() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype, async_op in itertools.product([torch.float32, torch.uint8, torch.complex64], [False, True]):
        inputs = [value(rank * size + part, (part + 1, 2), dtype) for part in range(size)]
        expected = [value(other * size + rank, (rank + 1, 2), dtype) for other in range(size)]
        outputs = [torch.zeros(rank + 1, 2, dtype=dtype) for _ in range(size)]
        work = dist.all_to_all(outputs, inputs, async_op=async_op)
        if work is not None:
            work.wait()
        for got, want in zip(outputs, expected, strict=True):
            same(got, want, "all_to_all")
        whole = torch.zeros(size * (rank + 1), 2, dtype=dtype)
        work = dist.all_to_all_single(
            whole,
            torch.cat(inputs),
            output_split_sizes=[rank + 1] * size,
            input_split_sizes=[part + 1 for part in range(size)],
            async_op=async_op,
        )
        if work is not None:
            work.wait()
        same(whole, torch.cat(expected), "uneven all_to_all_single")
    even = torch.arange(size * 2) + 100 * rank
    output = torch.zeros_like(even)
    dist.all_to_all_single(output, even)
    same(output, torch.cat([torch.arange(2) + 2 * rank + 100 * other for other in range(size)]))


def check_gather_scatter() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for root, async_op, shape in itertools.product(range(size), [False, True], [(), (0,), (5,), (2, 3)]):
        mine = value(rank, shape, torch.float32)
        outputs = [torch.zeros(shape) for _ in range(size)] if rank == root else None
        work = dist.gather(mine, outputs, dst=root, async_op=async_op)
        if work is not None:
            work.wait()
        for got, want in zip(outputs or [], values(shape, torch.float32), strict=False):
            same(got, want, "gather")
        output = torch.zeros(shape)
        inputs = values(shape, torch.float32) if rank == root else None
        work = dist.scatter(output, inputs, src=root, async_op=async_op)
        if work is not None:
            work.wait()
        same(output, mine, "scatter")


def check_shared_memory() -> None:
    """On the root, what it gives may lie where another rank's comes to."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.full((2,), rank + 1.0)
    outputs = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    if outputs:
        outputs[-1] = mine
    dist.gather(mine, outputs, dst=0)
    for place, output in enumerate(outputs or []):
        same(output, torch.full((2,), place + 1.0), "gather")
    inputs = [torch.full((2,), place + 1.0) for place in range(size)] if rank == 0 else None
    output = inputs[-1] if inputs else torch.zeros(2)
    dist.scatter(output, inputs, src=0)
    same(output, torch.full((2,), rank + 1.0), "scatter")


def check_lists() -> None:
    size = dist.get_world_size()
    inputs = [torch.ones(2), torch.ones(3)]
    for count in (1, 3):
        outputs = [[torch.zeros(2 + i) for i in range(count)] for _ in range(size)]
        with pytest.raises(
            ValueError, match=f"for rank 0 has {count} outputs, but needs one for each of the 2"
        ):
            dist.all_gather_coalesced(outputs, inputs)


def check_messages() -> None:
    """Errors about arguments say whose they are, and name the call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    begin = rf"^\[smdp\] rank {rank} of {size} \(host .*\): "
    one, rows = torch.ones(3), torch.eye(3).to_sparse_csr()
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (TypeError, "all_reduce: smdp supports dense tensors", lambda: dist.all_reduce(rows)),
        (TypeError, "broadcast: smdp supports tensors on cpu", lambda: dist.broadcast(one.to("meta"), 0)),
        (
            ValueError,
            rf"all_gather: the output has {7 * size} elements",
            lambda: dist.all_gather_into_tensor(torch.ones(7 * size), one),
        ),
        (ValueError, "all_gather: the output needs one tensor per rank", lambda: dist.all_gather([], one)),
        (
            ValueError,
            f"all_to_all_single: the input needs one split size per rank, {size} in total, but got 7",
            lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), None, [1] * 7),
        ),
        (
            TypeError,
            "reduce_scatter: all tensors of one call must have the same dtype",
            lambda: dist.reduce_scatter_tensor(one.int(), torch.ones(3 * size)),
        ),
        (
            ValueError,
            "reduce: BAND is not defined on float32",
            lambda: dist.reduce(one, 0, dist.ReduceOp.BAND),
        ),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=begin + message):
            call()


def movements() -> None:
    checks = check_broadcast, check_all_gather, check_all_to_all, check_gather_scatter, check_shared_memory
    for check in (*checks, check_lists, check_messages):
        check()
        print(check.__name__, "passed")


@pytest.mark.parametrize("size", [1, 3])
def test_movements(size: int) -> None:
    run(movements, size)
