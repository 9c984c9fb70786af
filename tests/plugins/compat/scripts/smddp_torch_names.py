"""Every name of SMDDP's old API for PyTorch, against what it must give."""

import sys
import warnings

import smdistributed.dataparallel.torch.distributed as dist
import torch
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

assert dist.is_available() and not dist.is_initialized()
try:
    DDP(torch.nn.Linear(2, 2))
except RuntimeError as error:
    assert "before init_process_group()" in str(error)
else:
    sys.exit("a model before init_process_group() must fail")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    dist.init_process_group()
    dist.init_process_group()
assert [str(each.message) for each in caught if "deprecated" in str(each.message)], "no word of its age"
assert dist.is_initialized()
rank, size = dist.get_rank(), dist.get_world_size(dist.group.WORLD)
assert (rank, dist.get_local_rank()) == (torch.distributed.get_rank(), rank)


def reduced(**options):
    x = torch.tensor([1.0, 2.0]) * (rank + 1)
    work = dist.all_reduce(x, **options)
    if options.get("async_op"):
        work.wait()
    return x.tolist()


assert reduced() == reduced(op=None) == reduced(async_op=True) == [3, 6]
assert reduced(op=dist.ReduceOp.AVERAGE) == [1.5, 3]
assert reduced(op=dist.ReduceOp.MIN) == [1, 2] and reduced(op=dist.ReduceOp.MAX) == [2, 4]
assert reduced(op=dist.ReduceOp.PRODUCT) == [2, 8]

x = torch.tensor([float(rank)])
dist.broadcast(x, 1)
assert x.item() == 1
x = torch.tensor([rank + 1.0])
dist.reduce(x, 1)
assert rank == 0 or x.item() == 3
parts = [torch.empty(1) for _ in range(size)]
dist.all_gather(parts, torch.tensor([rank + 1.0]))
assert parts == [1, 2]
out = torch.empty(2)
dist.all_to_all_single(out, torch.tensor([0.0, 1.0]) + 10 * rank)
assert out.tolist() == ([0, 10] if rank == 0 else [1, 11])
out = torch.empty(2 * (rank + 1))
dist.all_to_all_single(out, torch.arange(3.0) + 10 * rank, [rank + 1] * 2, [1, 2])
assert out.tolist() == ([0, 10] if rank == 0 else [1, 2, 11, 12])
dist.barrier()
# Names that the old API lacked.
out = torch.empty(2)
dist.all_gather_into_tensor(out, torch.tensor([rank + 1.0]), group=dist.new_group([0, 1]))
assert out.tolist() == [1, 2] and dist.get_backend() == "smddp"
assert not hasattr(dist, "no_such_name")

# Its Python API for the sums of the library below.
import smddpcommon  # noqa: E402

for dtype, name in ((torch.float32, "herringFloat32"), (torch.float16, "herringFloat16")):
    source, result = torch.arange(4, dtype=dtype) * (rank + 1), torch.empty(4, dtype=dtype)
    addresses = source.data_ptr(), result.data_ptr()
    task = smddpcommon.allReduce(*addresses, getattr(smddpcommon, name), 4, 0, 1, 0)
    smddpcommon.wait(task.request)
    assert result.tolist() == [0, 3, 6, 9] and source.tolist() == [0, rank + 1, 2 * rank + 2, 3 * rank + 3]

dist.destroy_process_group()
assert not dist.is_initialized()
if rank == 0:
    print(f"all is right on {size} ranks", flush=True)
