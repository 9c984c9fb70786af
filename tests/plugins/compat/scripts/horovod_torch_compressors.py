"""Compressors of a script's own, as Horovod's documentation describes them: half of a tensor is sent."""

import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch.compression import Compressor

hvd.init()
rank = hvd.rank()


class FirstHalf(Compressor):
    @staticmethod
    def compress(tensor):
        flat = tensor.flatten()
        return flat[: flat.numel() // 2].clone(), tensor.shape

    @staticmethod
    def decompress(tensor, ctx):
        return torch.cat([tensor, tensor.new_zeros(ctx.numel() - tensor.numel())]).reshape(ctx)


class Plain:
    """Not derived from anything, and an object in place of a class."""

    def compress(self, tensor):
        return tensor.double(), tensor.dtype

    def decompress(self, tensor, ctx):
        return tensor.to(ctx)


def same(got, wanted):
    np.testing.assert_allclose(np.asarray(got.detach()), wanted)


x = torch.arange(4.0).reshape(2, 2) + rank
for given in (FirstHalf, FirstHalf()):
    same(hvd.allreduce(x, compression=given), [[0.5, 1.5], [0, 0]])
    same(hvd.grouped_allreduce([x, 2 * x], compression=given, op=hvd.Sum)[1], [[2, 6], [0, 0]])
same(hvd.allreduce(x, compression=Plain()), [[0.5, 1.5], [2.5, 3.5]])
same(hvd.reducescatter(x, compression=Plain()), [[0.5, 1.5]] if rank == 0 else [[2.5, 3.5]])

for given, wanted in ((FirstHalf, [3, 3, 0, 0]), (Plain(), [3, 3, 3, 3])):
    weight, unused = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight, unused], lr=1.0), compression=given, backward_passes_per_step=2
    )
    for _ in range(2):
        (weight * (rank + 1.0)).sum().backward()
    same(weight.grad, wanted)  # averaged when backward returns
    optimizer.step()
    same(-weight, wanted)
    same(unused, np.zeros(4))

try:
    hvd.allreduce(x, compression="zip")
except ValueError as error:
    assert "is 'zip'" in str(error)
else:
    raise AssertionError("was taken")
print(f"all is right on {hvd.size()} ranks", flush=True)
