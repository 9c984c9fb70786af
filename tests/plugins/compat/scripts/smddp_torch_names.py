"""Every name of SMDDP's old API for PyTorch, against what it must give."""

import ctypes
import itertools
import mmap
import os
import socket
import sys
import warnings
from datetime import timedelta

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
assert reduced(op=dist.ReduceOp.AVERAGE) == reduced(op=dist.ReduceOp.AVG) == [1.5, 3]
assert reduced(op=dist.ReduceOp.MIN) == [1, 2] and reduced(op=dist.ReduceOp.MAX) == [2, 4]
assert reduced(op=dist.ReduceOp.PRODUCT) == [2, 8]

x = torch.tensor([float(rank)])
dist.broadcast(x, 1)
assert x.item() == 1
x = torch.tensor([rank + 1.0])
dist.reduce(x, 1)
assert rank == 0 or x.item() == 3
x = torch.tensor([rank + 1.0])
dist.reduce(x, dst=0, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
assert rank == 1 or x.item() == 2
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


# A wrapper that one rank moves to another GPU, as SMDDP's examples do; pretended, on the CPU.
class Moved(DDP):
    moves = False

    def _devices(self):
        return {next(places)} if self.moves else set()


def pretend(self, *arguments, **options):
    plain(self, *arguments, **options)
    self.device_type = "a GPU"


places, torchs = itertools.count(), torch.nn.parallel.DistributedDataParallel
plain, torchs.__init__ = torchs.__init__, pretend
model = Moved(torch.nn.Linear(3, 1)).eval()
before = model.reducer
model.moves = rank == 1
model.float()
torchs.__init__ = plain
assert (model.reducer is before) == (rank == 0) and not model.training
model.train()(torch.full((1, 3), rank + 1.0)).sum().backward()
assert model.module.weight.grad.tolist() == [[1.5] * 3]

# Its Python API for the sums of the library below.
import smddpcommon  # noqa: E402

for dtype, name in ((torch.float32, "herringFloat32"), (torch.float16, "herringFloat16")):
    source, result = torch.arange(4, dtype=dtype) * (rank + 1), torch.empty(4, dtype=dtype)
    addresses = source.data_ptr(), result.data_ptr()
    task = smddpcommon.allReduce(*addresses, getattr(smddpcommon, name), 4, 0, 1, 0)
    smddpcommon.wait(task.request)
    assert result.tolist() == [0, 3, 6, 9] and source.tolist() == [0, rank + 1, 2 * rank + 2, 3 * rank + 3]

# What is not the CPU's: reserved as a GPU's is, nothing, and half of it behind the end.
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
reserved = libc.mmap(None, mmap.PAGESIZE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
last = libc.mmap(
    None, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
)
libc.munmap(ctypes.c_void_p(last + mmap.PAGESIZE), mmap.PAGESIZE)
address = result.data_ptr()
for name, wrong in (
    ("in_ptr", (reserved, address)),
    ("out_ptr", (address, 0)),
    ("in_ptr", (last + mmap.PAGESIZE - 2, address)),
):
    try:
        smddpcommon.allReduce(*wrong, smddpcommon.herringFloat16, 4, 0, 1, 0)
    except ValueError as error:
        assert f"{name} is 0x" in str(error) and "where 8 bytes of host memory are needed" in str(error)
    else:
        sys.exit("an address that is not the CPU's must fail")
try:
    smddpcommon.allReduce(address, address, -1, 4, 0, 1, 0)
except ValueError as error:
    assert "dtype is -1; allowed: herringFloat16, herringFloat32" in str(error)
else:
    sys.exit("another dtype must fail")

# The forms in which scripts start the backend.
place = {"world_size": size, "rank": rank}
for words, options in (
    (["smddp"], {**place, "store": None, "group_name": ""}),
    ([], {"backend": "smddp", "init_method": "env://", "timeout": timedelta(seconds=30)}),
    (["smddp"], {"timeout": timedelta(seconds=30)}),
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1]]
    torch.distributed.broadcast_object_list(ports, 0)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(ports[0])
    torch.distributed.init_process_group(*words, **options)
    assert reduced() == [3, 6] and torch.distributed.get_backend() == "smddp"

dist.destroy_process_group()
assert not dist.is_initialized()
if rank == 0:
    print(f"all is right on {size} ranks", flush=True)
