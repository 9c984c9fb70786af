"""Compressors of a script's own, as Horovod's documentation describes them: half of a tensor is sent."""

import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch.compression import Compressor, FP16Compressor

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


class Rounded(Compressor):
    """To bytes, whose sum would not be one."""

    def __init__(self, *, step):
        self.step = step

    def compress(self, tensor):
        return (tensor / self.step).round().to(torch.int8), None

    def decompress(self, tensor, ctx):
        return tensor * self.step


seen = []


class Logged(FP16Compressor):
    @classmethod
    def compress(cls, tensor):
        seen.append(tensor.shape)
        return super().compress(tensor)


def same(got, wanted):
    np.testing.assert_allclose(np.asarray(got.detach()), wanted)


x = torch.arange(4.0).reshape(2, 2) + rank
for given in (FirstHalf, FirstHalf()):
    same(hvd.allreduce(x, compression=given), [[0.5, 1.5], [0, 0]])
    same(hvd.grouped_allreduce([x, 2 * x], compression=given, op=hvd.Sum)[1], [[2, 6], [0, 0]])
same(hvd.allreduce(x, compression=Plain()), [[0.5, 1.5], [2.5, 3.5]])
same(hvd.reducescatter(x, compression=Plain()), [[0.5, 1.5]] if rank == 0 else [[2.5, 3.5]])

same(hvd.allreduce(100 * torch.ones(2), compression=Rounded(step=1.0)), [100, 100])
same(hvd.allreduce(x, compression=Logged), [[0.5, 1.5], [2.5, 3.5]])
assert seen == [x.shape]

for given, wanted in (
    (FirstHalf, [3, 3, 0, 0]),
    (Plain(), [3, 3, 3, 3]),
    (Rounded(step=0.5), [3, 3, 3, 3]),
    (Logged, [3, 3, 3, 3]),
):
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


class Spread(Plain):
    def decompress(self, tensor, ctx):
        return tensor[:1].to(ctx)


def refused(call, text):
    try:
        call()
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError("was taken")


refused(
    lambda: hvd.allreduce(x, compression="zip"), "is 'zip'; allowed: Compression.none, fp16, bf16, int8, topk"
)
refused(
    lambda: hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Compressor), "or a class"
)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Spread())
refused(lambda: weight.sum().backward(), "returned shape [1] for a gradient of shape [4]")
print(f"all is right on {hvd.size()} ranks", flush=True)
