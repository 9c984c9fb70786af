# needs: torch transformers
# ranks: 2
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import smdp.torch
from smdp.transformers import DataParallel, ModelParallel

dist.init_process_group("smdp")


def made():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))


batches = [torch.full((4, 8), float(step)) for step in range(3)]
folder = tempfile.mkdtemp(dir="/var/tmp")


def train():
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


model = smdp.torch.DistributedDataParallel(made())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
plain = train()

model = made()
run(0)
model = smdp.torch.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
assert all(map(torch.equal, train(), plain))

model = made()
run(1)
assert next(model.parameters()).dtype is torch.bfloat16

model = made()
run(2)
assert all(map(torch.equal, train(), plain))

model = made()
run(3)
train()
run(4)
assert plugins[0].changed == ["shard_optimizer"]
dist.destroy_process_group()
