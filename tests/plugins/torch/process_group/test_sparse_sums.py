"""all_reduce of sparse COO tensors, against dense sums in one process."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp
from torch_spawn import run
from torch_values import COMPLEX, INTEGERS, REAL, fold

import smdp


def rows_of(rank: int, dtype: torch.dtype, sparse_dims: int, rows: int, count: int) -> Tensor:
    """Returns an uncoalesced tensor of shape [rows, 3, 2], other than on other ranks."""
    generator = torch.Generator().manual_seed(rank)
    shape = (rows, 3, 2)
    indices = torch.stack(
        [torch.randint(0, extent, (count,), generator=generator) for extent in shape[:sparse_dims]]
    )
    values = torch.randint(0, 4, (count, *shape[sparse_dims:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def dense(tensor: Tensor) -> Tensor:
    """Returns what to_dense() does, which coalesces where that has no bool and no float16."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(wide).to_dense()


def check_all_reduce() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    # More rows than the tensor has are summed densely. Rank 1 has fewer rows, or none.
    for dtype, dims, rows, count in itertools.product(
        [*REAL, *INTEGERS, torch.bool, *COMPLEX], [1, 2, 3], [4, 1000], [0, 50]
    ):
        counts = [count // 7 if other == 1 else count for other in range(size)]
        tensors = [rows_of(other, dtype, dims, rows, counts[other]) for other in range(size)]
        wanted = fold(torch.add, [dense(tensor) for tensor in tensors])
        where = torch.cat([tensor._indices() for tensor in tensors], 1).unique(dim=1)
        mine = tensors[rank]
        given = mine.coalesce() if rank == 0 and dtype in (torch.float32, torch.int64) else mine
        assert dist.all_reduce(given) is None
        assert given.is_coalesced() and given.dtype is dtype
        assert torch.equal(given.indices(), where)
        if dtype is torch.bool:
            wanted = (wanted != 0).double()
        torch.testing.assert_close(dense(given), wanted, rtol=0, atol=0)


def check_operations() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))

    def one_row() -> Tensor:
        return torch.sparse_coo_tensor([[1]], [rank + 1.0], (4,), check_invariants=True)

    mean = one_row()
    dist.all_reduce(mean, op=ReduceOp.AVG)
    assert mean.to_dense().tolist() == [0, total / size, 0, 0]
    scaled = one_row()
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    assert scaled.to_dense().tolist() == [0, total / 2, 0, 0]
    later = one_row()
    work = dist.all_reduce(later, async_op=True)
    assert work.get_future().wait()[0] is later
    assert later.to_dense().tolist() == [0, total, 0, 0]
    under_way = [one_row() for _ in range(20)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in under_way]:
        assert work.wait() and work.is_completed() and work.is_success()
    assert all(tensor.to_dense().tolist() == [0, total, 0, 0] for tensor in under_way)


def check_refusals() -> None:
    tensor = torch.sparse_coo_tensor([[1]], [1.0], (4,), check_invariants=True)
    with pytest.raises(
        ValueError, match=r"all_reduce of a sparse tensor does not support MAX, .* Use SUM or AVG"
    ):
        dist.all_reduce(tensor, op=ReduceOp.MAX)
    with pytest.raises(ValueError, match="AVG is not defined on bool"):
        dist.all_reduce(tensor.to(torch.bool), op=ReduceOp.AVG)
    outside = torch.sparse_coo_tensor([[7]], [1.0], (4,), check_invariants=False)
    with pytest.raises(ValueError, match=r"of shape \[4\] has index 7 in dimension 0; allowed: 0 to 3"):
        dist.all_reduce(outside)
    for call in (lambda: dist.broadcast(tensor, 0), lambda: dist.all_reduce(torch.eye(3).to_sparse_csr())):
        with pytest.raises(
            TypeError, match=r"smdp supports dense tensors here, but got a tensor of layout torch\.sparse"
        ):
            call()
    dist.all_reduce(tensor)  # nothing was sent
    assert tensor.to_dense()[1] == dist.get_world_size()


@pytest.mark.parametrize(
    "check", [check_all_reduce, check_operations, check_refusals], ids=lambda check: check.__name__
)
def test_sparse_sums(check: object) -> None:
    run(check, 3 if check is check_all_reduce else 2)


def test_sparse_sums_between_hosts() -> None:
    run(check_operations, 3, hosts=[0, 0, 1])


def check_mismatch() -> None:
    rank = dist.get_rank()
    tensor = torch.ones(4) if rank else torch.sparse_coo_tensor([[1]], [1.0], (4,), check_invariants=True)
    with pytest.raises(
        smdp.MismatchError, match=r"all_reduce(_sparse)? #1 float32\[4\].* called all_reduce(_sparse)? #1"
    ):
        dist.all_reduce(tensor)


def test_sparse_on_one_rank_and_dense_on_another() -> None:
    run(check_mismatch)
