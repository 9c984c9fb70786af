# needs: torch
# ranks: 2
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

import smdp.torch

dist.init_process_group("smdp")


class Model(nn.Sequential):
    class config:
        @staticmethod
        def save_pretrained(path):
            assert os.path.isdir(path)


def make_model():
    torch.manual_seed(0)
    return Model(*(nn.Linear(4, 4) for _ in range(4)))


def loss_fn(output):
    return output.square().mean()


model = make_model()
batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
loader = [batch, batch]
dataset = range(8)

run(0)  # two steps
run(1, dict(globals()))  # without memory
run(2)
assert list(sampler) and len(sampler) == 8
run(3)
saved = {name: value.clone() for name, value in pipe.state_dict().items()}
ranks = [{}, {}]
dist.all_gather_object(ranks, saved)
try:
    import safetensors
except ModuleNotFoundError:
    skip(5, "safetensors is not installed")
else:
    run(5)
rank = dist.get_rank()
dist.destroy_process_group()

if rank == 0:
    whole = {**ranks[0], **ranks[1]}
    model = make_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that it is alone
        run(4)
    assert all(torch.equal(value, whole[name]) for name, value in model.named_parameters())
else:
    skip(4, "one process runs it")
