"""Every family of horovod.torch, against what it must give."""

import importlib.util
import sys
import warnings

import horovod.common.process_sets
import horovod.torch as hvd
import horovod.torch.mpi_ops
import horovod.torch.sync_batch_norm
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import check_extension, extension_available, split_list

import smdp.compat.horovod.torch.optimizer


def refused(call, error, text):
    try:
        call()
    except error as raised:
        assert text in str(raised), str(raised)
    else:
        sys.exit(f"not refused: {text}")


for call in (
    hvd.rank,
    hvd.local_rank,
    hvd.barrier,
    hvd.join,
    lambda: hvd.allreduce(torch.ones(1)),
    lambda: hvd.broadcast_object(1),
    lambda: hvd.add_process_set([0]),
    lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)])),
):
    refused(call, ValueError, "use hvd.init()")

even = hvd.ProcessSet([0])
hvd.init(process_sets=[even])
hvd.init(comm=[1, 0], process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
assert hvd.is_initialized() and hvd.is_homogeneous() and hvd.gloo_built() and not hvd.nccl_built()


def same(got, expected):
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-6)


x = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
same(hvd.allreduce(x), [1.5, 3, 6])
same(hvd.allreduce(x, average=False), [3, 6, 12])
same(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), [6, 12, 24])
same(hvd.allreduce(x, op=hvd.Max, name="m"), [2, 4, 8])
same(hvd.allreduce(x, op=hvd.Product), [2, 8, 32])
same(hvd.allreduce(x, compression=hvd.Compression.fp16), [1.5, 3, 6])
same(hvd.allreduce(torch.tensor([1, 4]) + rank), [1, 4])
half = torch.full((3,), 6e4, dtype=torch.float16)  # of which the sum is too large
same(hvd.allreduce(half), [6e4] * 3)
same(hvd.reducescatter(half), [6e4] * (2 - rank))
for dtype in (torch.uint8, torch.int8, torch.int16):  # of which the sum is too large, too
    top = torch.iinfo(dtype).max
    high = torch.tensor([top, top - 2], dtype=dtype)
    for got in (hvd.allreduce(high), hvd.grouped_allreduce_([high.clone()])[0]):
        assert got.dtype == dtype and got.tolist() == [top, top - 2]
    got = hvd.reducescatter(high)
    assert got.dtype == dtype and got.tolist() == [top - 2 * rank]
whole = torch.tensor([1, 4, 6]) + rank
same(hvd.allreduce(whole, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0), [18, 54, 78])
assert hvd.reducescatter(whole).tolist() == ([1, 4] if rank == 0 else [6])
assert hvd.reducescatter(whole, prescale_factor=2.0).tolist() == ([3, 9] if rank == 0 else [13])
same(hvd.synchronize(hvd.allreduce_async(x, op=hvd.Min)), [1, 2, 4])
first, second = hvd.grouped_allreduce([x, x + 1], op=hvd.Sum)
same(first, [3, 6, 12])
same(second, [5, 8, 14])
first, second = hvd.synchronize(hvd.grouped_allreduce_async([x, x + 1]))
same(first, [1.5, 3, 6])
same(second, [2.5, 4, 7])
y = x.clone()
hvd.allreduce_(y)
same(y, [1.5, 3, 6])
handle = hvd.allreduce_async_(y, op=hvd.Sum)
hvd.synchronize(handle)
assert hvd.poll(handle)
same(y, [3, 6, 12])
handle = hvd.allreduce_async(x)
names = {handle: "x"}  # as the ints of Horovod are used
same(hvd.synchronize(handle), [1.5, 3, 6])
same(hvd.synchronize(handle), [1.5, 3, 6])
for first, second in (
    hvd.grouped_allgather([x[:1], x[1:]]),
    hvd.synchronize(hvd.grouped_allgather_async([x[:1], x[1:]])),
):
    same(first, [1, 2])
    same(second, [2, 4, 4, 8])
for first, second in (
    hvd.grouped_reducescatter([x, x[:2]], op=hvd.Sum),
    hvd.synchronize(hvd.grouped_reducescatter_async([x, x[:2]], op=hvd.Sum)),
):
    same(first, [3, 6] if rank == 0 else [12])
    same(second, [3] if rank == 0 else [6])
same(hvd.allgather(torch.full((rank + 1, 2), float(rank))), [[0, 0], [1, 1], [1, 1]])
same(hvd.broadcast(x, 1), [2, 4, 8])
same(hvd.broadcast_(x.clone(), 0), [1, 2, 4])
same(hvd.alltoall(torch.arange(4.0) + 10 * rank), [0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
received, counts = hvd.alltoall(torch.arange(3.0) + 10 * rank, splits=torch.tensor([1, 2]))
same(received, [0, 10] if rank == 0 else [1, 2, 11, 12])
assert counts.tolist() == ([1, 1] if rank == 0 else [2, 2])
same(
    hvd.reducescatter(torch.arange(3.0), "name", hvd.Compression.fp16, hvd.Sum), [0, 2] if rank == 0 else [4]
)
assert hvd.global_process_set.ranks == [0, 1] and hvd.global_process_set.rank() == rank
assert even.ranks == [0] and even.size() == 1
if even.included():
    same(hvd.allreduce(x, op=hvd.Sum, process_set=even), [1, 2, 4])
# Rank 0 has rows 0 and 2, rank 1 has row 2 twice.
rows = torch.tensor([[0, 2] if rank == 0 else [2, 2]])
values = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
sparse = torch.sparse_coo_tensor(rows, values, (3, 2), check_invariants=True)
total = hvd.synchronize(hvd.sparse_allreduce_async(sparse, name="s", op=hvd.Sum))
assert total.is_coalesced()
same(total.to_dense(), [[1, 2], [0, 0], [9, 18]])
same(hvd.sparse_allreduce_async(sparse, "s", hvd.Average)().to_dense(), [[0.5, 1], [0, 0], [4.5, 9]])
for wrong, options in ((sparse.to_dense(), {}), (sparse, {"op": hvd.Max})):
    try:
        hvd.sparse_allreduce_async(wrong, **options)
    except ValueError as error:
        assert "sparse_allreduce_async" in str(error)
    else:
        sys.exit("a dense tensor, or another operation, must fail")

w = torch.ones(3, requires_grad=True)
(hvd.allreduce(w, op=hvd.Sum) * (rank + 1)).sum().backward()
same(w.grad, [3, 3, 3])
w = torch.ones(rank + 1, requires_grad=True)
(hvd.allgather(w) * torch.arange(3.0)).sum().backward()
same(w.grad, [0] if rank == 0 else [1, 2])
w, v = torch.ones(rank + 1, requires_grad=True), torch.ones(1, requires_grad=True)
sum(((rank + 1) * each).sum() for each in hvd.grouped_allgather([w, v])).backward()
same(w.grad, [1.5] * (rank + 1))
same(v.grad, [1.5])
w = torch.ones(2, requires_grad=True)
(hvd.broadcast(w, 0) * (rank + 1)).sum().backward()
same(w.grad, [1.5, 1.5] if rank == 0 else [0, 0])
w = torch.ones(4, requires_grad=True)
(hvd.alltoall(w) * (rank + 1)).sum().backward()
same(w.grad, [1, 1, 2, 2])
for op, factor in ((hvd.Average, 1), (hvd.Sum, 2)):
    w, v = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    one, two = hvd.grouped_reducescatter([w, v], op=op)
    ((one * (rank + 1)).sum() + two.sum()).backward()
    same(w.grad, [factor, factor, 2 * factor])
    same(v.grad, [factor, factor])

assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
assert hvd.broadcast_object_fn(root_rank=1)(rank) == 1
assert hvd.allgather_object(rank) == [0, 1]
if importlib.util.find_spec("cloudpickle"):
    assert hvd.broadcast_object(lambda: rank, root_rank=1)() == 1
    assert [each() for each in hvd.allgather_object(lambda: rank)] == [0, 1]


class Mine:
    """Of the script itself, and so the same class on every rank."""


assert isinstance(hvd.broadcast_object(Mine()), Mine)
assert hvd.join() == 1
small, dtype = hvd.Compression.fp16.compress(x)
assert small.dtype == torch.float16
same(hvd.Compression.fp16.decompress(small, dtype), x)

# Modules that scripts import from.
assert horovod.torch.mpi_ops.allreduce_async_ is hvd.allreduce_async_ and HorovodInternalError
assert horovod.torch.sync_batch_norm.SyncBatchNorm is hvd.SyncBatchNorm
assert horovod.common.process_sets.global_process_set is hvd.global_process_set
assert horovod.common.process_sets.get_process_set_ids_and_ranks()[0] == [0, 1]
assert horovod.common.process_sets.is_process_set_included(even.process_set_id) == (rank == 0)
first, second = hvd.add_process_set([0]), hvd.add_process_set([1])
hvd.remove_process_set(first)
assert second.process_set_id != hvd.add_process_set([0, 1]).process_set_id
check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
assert extension_available("torch") and hvd.gpu_available("torch") == torch.cuda.is_available()
assert split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]

# Every form of parameters; those of two rows are no pairs.
for form in (list, lambda given: given, lambda given: [("name", each) for each in given]):
    net = torch.nn.Linear(3, 2)
    for each in net.parameters():
        torch.nn.init.constant_(each, rank)
    hvd.broadcast_parameters(form(net.parameters()), root_rank=1)
    assert all((each == 1).all() for each in net.parameters())

# Whatever device new tensors are made on by default, and whichever the root's state is on.
torch.set_default_device("meta")
same(hvd.allgather(x[: rank + 1]), [1, 2, 4])
same(hvd.alltoall(x[:2], splits=[1, 1])[0], [1, 2] if rank == 0 else [2, 4])
same(hvd.synchronize(hvd.sparse_allreduce_async(sparse)).to_dense(), [[0.5, 1], [0, 0], [4.5, 9]])
assert hvd.broadcast_object(rank) == 0 and hvd.allgather_object(rank) == [0, 1]
w = torch.ones(rank + 1, requires_grad=True, device="cpu")
hvd.allgather(w).sum().backward()
same(w.grad, [1] if rank == 0 else [1, 1])
base = torch.optim.SGD([torch.ones(2, requires_grad=True, device="cpu")], lr=1.0, momentum=0.5)
base.param_groups[0]["params"][0].grad = torch.full((2,), rank + 1.0, device="cpu")
base.step()
hvd.broadcast_optimizer_state(base, root_rank=1)
same(*(state["momentum_buffer"] for state in base.state.values()), [2, 2])
torch.set_default_device(None)

# From here on by the way of parameters on a GPU, if asked.
is_as_on_gpu = "as-on-gpu" in sys.argv
if is_as_on_gpu:
    smdp.compat.horovod.torch.optimizer._is_on_cpu = lambda parameter: False

# Sums of two backwards, over a layer with sparse gradients, with the optimizer's state from rank 1.
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1))
base = torch.optim.SGD(net.parameters(), lr=0.1 * (rank + 1), momentum=0.5)
hvd.broadcast_parameters(net.state_dict(), root_rank=1)
hvd.broadcast_optimizer_state(base, root_rank=1)
assert base.param_groups[0]["lr"] == 0.2
optimizer = hvd.DistributedOptimizer(base, net.named_parameters(), backward_passes_per_step=2, op=hvd.Sum)
assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
rows = [torch.tensor([rank, 2]), torch.tensor([4 - rank])]
for part in rows:
    net(part).sum().backward()
bias = net[1].bias.grad.clone()
optimizer.step()
scheduler.step()
same(bias, [6.0])
assert optimizer.param_groups[0]["lr"] == 0.1
weights = hvd.allgather(net[0].weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[1])
optimizer.zero_grad()

# Three batches in an epoch, two to a step: the last step has one. A scheduler made before the wrapping.
torch.manual_seed(0)
net = torch.nn.Linear(700, 700)
base = torch.optim.SGD(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(base, 1, 0.5)
optimizer = hvd.DistributedOptimizer(base, net.named_parameters(), backward_passes_per_step=2)
for _ in range(2):
    for batch in range(3):
        net(torch.full((1, 700), rank + batch + 1.0)).square().mean().backward()
        if batch in (1, 2):
            optimizer.step()
            optimizer.zero_grad()
assert "step" not in vars(optimizer)
weights = hvd.allgather(net.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[1])

# An error in the user's code between synchronize() and step() does not leave later steps without averages.
try:
    with optimizer.skip_synchronize():
        raise KeyError
except KeyError:
    optimizer.zero_grad()
    net(torch.full((1, 700), rank + 1.0)).sum().backward()
    optimizer.step()
same(net.bias.grad, np.ones(700))
same(net.weight.grad[0], np.full(700, 1.5))


# One backward more than a step has is an error; over other parameters it is none, nor in a checkpoint.
def wrapped(**options):
    nets = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    base = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.0)
    return *nets, hvd.DistributedOptimizer(base, **options)


def backward(*nets):
    part = torch.full((1, 2), rank + 1.0)
    for net in nets:
        part = torch.utils.checkpoint.checkpoint(net, part.expand(1, 2).requires_grad_(), use_reentrant=True)
    part.sum().backward()


for op in (hvd.Sum, hvd.Average):
    one, two, optimizer = wrapped(op=op)
    for skip in (optimizer.step, optimizer.synchronize, optimizer.zero_grad):
        backward(one)
        skip()
    one.zero_grad()
    backward(one)
    same(one.weight.grad, [[3, 3]] if op == hvd.Sum else [[1.5, 1.5]])
    text = "more than backward_passes_per_step=1 times"
    refused(lambda: backward(one), RuntimeError, text)  # noqa: B023
one, two, optimizer = wrapped(backward_passes_per_step=2)
for _ in range(2):
    backward(one, two)  # a backward of a checkpoint's own for each
backward_weight = two.weight.detach().sum()
optimizer.step()
same(two.bias.grad, [2])
same(one.bias.grad, [2 * backward_weight])
one, two, optimizer = wrapped()
backward(one)
backward(two)
same(one.weight.grad, [[1.5, 1.5]])
one, two, optimizer = wrapped(op=hvd.Sum)
refused(lambda: backward(one, two), RuntimeError, "op=Sum: gradients came after others")

# Gradients are zeros before the first backward, averages after a step, and zeros of what no rank has used.
one, two, optimizer = wrapped()
same(one.weight.grad, [[0.0, 0.0]])
for _ in range(2):
    one(torch.full((1, 2), rank + 1.0)).sum().backward()
    optimizer.step()
    same(one.weight.grad, [[1.5, 1.5]])
    same(two.weight.grad, [[0.0, 0.0]])
    optimizer.zero_grad()

# A step() after synchronize() says how to call it.
one, _, optimizer = wrapped()
backward(one)
optimizer.synchronize()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    optimizer.step()
assert ["skip_synchronize" in str(each.message) for each in seen] == [True], seen
same(one.weight.grad, [[1.5, 1.5]])
backward(one)
optimizer.synchronize()
with warnings.catch_warnings(), optimizer.skip_synchronize():
    warnings.simplefilter("error")
    optimizer.step()

# A rank that skips a step has taken part in the backward before it.
one, _, optimizer = wrapped()
for batch in range(2):
    optimizer.zero_grad()
    one(torch.full((1, 2), rank + batch + 1.0)).sum().backward()
    if rank == batch:
        optimizer.step()
    same(one.weight.grad, [[batch + 1.5] * 2])

# A step() that is left out after synchronize() is no reason to skip the next one's averages.
for clear in ("optimizer", "model", "nobody"):
    one, _, optimizer = wrapped(backward_passes_per_step=2)
    backward(one)
    optimizer.synchronize()
    if clear != "nobody":
        (optimizer if clear == "optimizer" else one).zero_grad()
    kept = 1.5 if clear == "nobody" else 0.0
    backward(one)
    optimizer.step()  # of one backward, the last of an epoch
    same(one.weight.grad, [[kept + 1.5] * 2])
    one.zero_grad()
    backward(one)
    backward(one)
    optimizer.synchronize()
    same(one.weight.grad, [[3.0] * 2])
    one.weight.grad.fill_(rank)  # as a script clips it: another synchronize() would average
    with optimizer.skip_synchronize():
        optimizer.step()
    same(one.weight.grad, [[rank] * 2])

# step() averages what there is, also gradients that no backward has put there.
one, _, optimizer = wrapped()
one.weight.grad = torch.full((1, 2), float(rank))
optimizer.step()
same(one.weight.grad, [[0.5] * 2])

# A backward that fails half-way is forgotten with its gradients. (On the CPU the next one says that it did.)
if is_as_on_gpu:
    one, _, optimizer = wrapped()
    wrong = one.weight.register_hook(lambda gradient: 1 / 0)
    refused(lambda: one(torch.ones(1, 2)).sum().backward(), ZeroDivisionError, "division")
    wrong.remove()
    optimizer.zero_grad()
    one(torch.full((1, 2), rank + 1.0)).sum().backward()
    same(one.weight.grad, [[1.5, 1.5]])

for wrong in (list(net.parameters()), {"w": net}, [("a",)], 3):
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    refused(lambda p=plain, w=wrong: hvd.DistributedOptimizer(p, w), ValueError, "model.named_parameters()")

# Wrapped anew for a second stage: the gradient is the mean, and not summed twice.
net.zero_grad()
second = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
net(torch.full((1, 700), rank + 1.0)).sum().backward()
same(net.bias.grad, np.ones(700))
same(net.weight.grad[0], np.full(700, 1.5))

refused(lambda: hvd.elastic, NotImplementedError, "horovod.torch.elastic is not supported")
refused(lambda: __import__("horovod.torch.elastic"), ImportError, "torchrun --max-restarts")
refused(lambda: hvd.start_timeline("t"), NotImplementedError, "SMDP_TRACE")
refused(lambda: exec("from horovod.torch import start_timeline"), ImportError, "set SMDP_TRACE=FOLDER")
refused(lambda: exec("from horovod.torch import no_such_name"), ImportError, "cannot import name")
assert not hasattr(hvd, "start_timeline")
refused(lambda: hvd.Compression.topk.compress(x), ValueError, "is 'topk'; allowed here")
refused(lambda: hvd.init(comm=[0]), ValueError, "comm is [0]; allowed: all 2 ranks")
refused(lambda: hvd.init(process_sets="static"), ValueError, "is 'static'; allowed: a list, or 'dynamic'")
refused(lambda: hvd.allreduce(x, op=hvd.Adasum), ValueError, "Adasum is not supported")
for call in (hvd.allreduce, hvd.reducescatter):
    for factor in ("prescale_factor", "postscale_factor"):
        text = "factor of torch.int64 is 0.5; allowed for integers: whole numbers"
        refused(lambda: call(whole, op=hvd.Sum, **{factor: 0.5}), ValueError, text)  # noqa: B023
refused(lambda: hvd.allreduce(x, average=True, op=hvd.Sum), ValueError, "not both")
refused(lambda: hvd.allreduce(x, compression=hvd.Compression.int8), ValueError, "is 'int8'; allowed here")
refused(lambda: hvd.reducescatter(x, compression="fp8"), ValueError, "is 'fp8'; allowed: Compression.none")
for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_async_):
    refused(lambda: call(3.0), TypeError, "got a float instead of a tensor")  # noqa: B023
for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async):
    refused(lambda: call([1], 0), TypeError, "broadcast got a list instead of a tensor")  # noqa: B023
refused(lambda: hvd.grouped_allreduce([x, 1]), TypeError, "allreduce got a int instead of a tensor")
for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
    refused(lambda: call(x[0]), ValueError, "first dimension, but this tensor is a scalar")  # noqa: B023
for call in (hvd.synchronize, hvd.poll):
    refused(lambda: call(77), TypeError, "got a int instead of a handle")  # noqa: B023
refused(lambda: hvd.allreduce(x, process_set=3), TypeError, "process_set is 3; expected an hvd.ProcessSet")
refused(lambda: hvd.DistributedOptimizer(net), TypeError, "got a Linear instead of an optimizer")
refused(lambda: hvd.broadcast_optimizer_state(net, 0), TypeError, "got a Linear instead of an optimizer")
refused(lambda: wrapped(backward_passes_per_step="2"), TypeError, "= '2' is not valid; allowed: a num")
refused(lambda: hvd.no_such_name, AttributeError, "has no 'no_such_name'")
refused(lambda: hvd.DistributedOptimizer(base, [("a", net.bias)]), ValueError, "lacks 1 of")
for call in (hvd.allreduce, hvd.reducescatter):
    refused(lambda: call(x > 1), ValueError, "op of a torch.bool tensor is Average; allowed: Sum")  # noqa: B023
refused(lambda: hvd.broadcast_parameters([["a", x]], 0), TypeError, "got a list instead of a tensor")
text = "the process set of ranks [0, 1] was not added"
unknown = hvd.ProcessSet([0, 1])
refused(lambda: hvd.allreduce(x, process_set=unknown), ValueError, text)
refused(lambda: hvd.barrier(process_set=unknown), ValueError, text)
refused(lambda: wrapped(process_set=unknown), ValueError, text)
refused(unknown.rank, ValueError, text)
refused(lambda: wrapped(process_set=hvd.ProcessSet([0])), ValueError, "of ranks [0] was not added")
state = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
for call in (
    lambda: hvd.broadcast_object(rank, 0, process_set=even),
    lambda: hvd.allgather_object(rank, process_set=even),
    lambda: hvd.broadcast_optimizer_state(state, 0, process_set=even),
    lambda: hvd.broadcast_parameters([("a", x)], 0, process_set=even),
    lambda: hvd.allreduce(x, process_set=even),
    lambda: hvd.reducescatter(x, process_set=even),
    lambda: hvd.allgather(x, process_set=even),
    lambda: hvd.alltoall(x, process_set=even),
    lambda: hvd.barrier(process_set=even),
    even.rank,
):
    if rank == 0:
        call()
    else:
        refused(call, ValueError, "rank 1 is not in the process set of ranks [0]")
refused(lambda: hvd.alltoall(torch.ones(3)), ValueError, "do not divide evenly among 2 ranks; pass splits")
refused(lambda: hvd.add_process_set(even), ValueError, "added already")
assert not hasattr(hvd, "elastic")
assert hvd.remove_process_set(even)
hvd.barrier()
# Steps for which one rank has no batch: it takes part with zeros.
weight = torch.nn.Parameter(torch.zeros(1))
lonely = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
for number in range(4):
    lonely.zero_grad()
    if number != rank + 1:
        (weight * 10.0**number).sum().backward()
    lonely.step()
assert weight.item() == -(1 + 10 / 2 + 100 / 2 + 1000), weight
thawed = torch.nn.Parameter(torch.ones(2))
lonely.add_param_group({"params": [thawed]})
(weight * thawed).sum().backward()
refused(lonely.step, RuntimeError, "a parameter of shape [2] has a gradient that is not averaged")
frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
idle = hvd.DistributedOptimizer(torch.optim.SGD([frozen], 1.0))
frozen.requires_grad_()
frozen.sum().backward()
refused(idle.step, RuntimeError, "a parameter of shape [2] has a gradient that is not averaged")
summed = torch.nn.Parameter(torch.zeros(1))
total = hvd.DistributedOptimizer(torch.optim.SGD([summed], 1.0), op=hvd.Sum)
summed.sum().backward()
total.synchronize()
total.synchronize()  # nothing new has come
total.step()
assert summed.item() == -size, summed
# As hooks do that run in another order on each rank.
everybody = hvd.add_process_set(list(range(size)))
refused(
    lambda: hvd.allreduce(x, name=f"layer {rank}", process_set=everybody),
    hvd.HorovodInternalError,
    "all_reduce 'layer 0'",
)
# A batch that the other rank does not have.
refused(lambda: hvd.join() if rank == 0 else hvd.allreduce(x), hvd.HorovodInternalError, "barrier")
hvd.shutdown()
hvd.shutdown()
if rank == 0:
    print(f"all is right on {size} ranks", flush=True)
