"""Sparse gradients under DistributedOptimizer, against dense ones in one process."""

import sys
from itertools import pairwise

import horovod.torch as hvd
import torch

import smdp.compat.horovod.torch.optimizer

hvd.init()
rank, size = hvd.rank(), hvd.size()
if "as-on-gpu" in sys.argv:  # by the way of parameters on a GPU
    smdp.compat.horovod.torch.optimizer._is_on_cpu = lambda parameter: False


class Net(torch.nn.Module):
    """A table that is used on demand, and a dense layer behind it."""

    def __init__(self, is_sparse):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(6, 2, sparse=is_sparse)
        self.last = torch.nn.Linear(2, 1)

    def forward(self, rows):
        return self.last(torch.ones(1, 2) if rows is None else self.table(rows)).sum()


def rows_of(other, step):
    """In the second step rank 1 uses none, in the third nobody does."""
    return None if step == 2 or (step == 1 and other == 1) else torch.tensor([other, 5, 5])


def check(make, is_sparse, **options):
    net, alone = Net(is_sparse=True), Net(is_sparse=False)
    named = list(net.named_parameters())
    if make is torch.optim.SparseAdam:
        named = [one for one in named if one[0] == "table.weight"]
    optimizer = hvd.DistributedOptimizer(make([each for _, each in named], lr=0.1), named, **options)
    for step in range(4):
        optimizer.zero_grad()
        alone.zero_grad()
        alone.load_state_dict(net.state_dict())
        net(rows_of(rank, step)).backward()
        optimizer.synchronize()
        is_sum = options.get("op") == hvd.Sum
        for other in range(size):
            (alone(rows_of(other, step)) / (1 if is_sum else size)).backward()
        grad, wanted = net.table.weight.grad, alone.table.weight.grad
        if grad is None or wanted is None:
            assert wanted is None and (grad is None or not grad.to_dense().any())
        else:
            assert grad.is_sparse == is_sparse, (make, step)
            torch.testing.assert_close(grad.to_dense(), wanted)
        with optimizer.skip_synchronize():
            optimizer.step()
    for weights in net.parameters():
        if any(weights is each for _, each in named):
            every = hvd.allgather(weights.detach().reshape(1, -1))
            assert all(torch.equal(one, other) for one, other in pairwise(every))


check(torch.optim.SparseAdam, is_sparse=True)
check(torch.optim.SGD, is_sparse=True)
check(torch.optim.SGD, is_sparse=True, op=hvd.Sum, compression=hvd.Compression.fp16)
check(torch.optim.Adagrad, is_sparse=True)
check(torch.optim.Adam, is_sparse=False, sparse_as_dense=True)

# Zeros that stand in for a gradient do not make it dense. They do so before the first step, on a rank that
# does not use the table in it, and after a step in which no rank does.
for make in (torch.optim.SGD, torch.optim.Adagrad):
    net = Net(is_sparse=True)
    optimizer = hvd.DistributedOptimizer(make(net.parameters(), lr=0.1), net.named_parameters())
    assert not net.table.weight.grad.any()
    net(rows_of(rank, step=1)).backward()
    optimizer.step()
    assert net.table.weight.grad.is_sparse and net.table.weight.grad.to_dense().any()
    optimizer.zero_grad()
    net(None).backward()
    optimizer.step()
    assert net.table.weight.grad.is_sparse and not net.table.weight.grad.to_dense().any()
    net(torch.tensor([rank])).backward()
    optimizer.step()
    assert net.table.weight.grad.is_sparse and net.table.weight.grad.to_dense().any()

# What nobody has used in the first step, when it shows which gradients are sparse, is made dense later.
net = Net(is_sparse=True)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
net(None).backward()
optimizer.step()
optimizer.zero_grad()
net(torch.tensor([rank])).backward()
optimizer.step()
assert not net.table.weight.grad.is_sparse
assert net.table.weight.grad.any(1).nonzero().flatten().tolist() == list(range(size))

print(f"all is right on {size} ranks", flush=True)
hvd.shutdown()
