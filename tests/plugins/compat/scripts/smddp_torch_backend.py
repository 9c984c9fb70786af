"""A script as users of SMDDP 1.4 and later write it: torch.distributed with backend "smddp", not imported."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="smddp", init_method="env://")

local_rank = int(os.environ["LOCAL_RANK"])
assert int(os.environ["SMDATAPARALLEL_LOCAL_RANK"]) == local_rank
assert dist.get_backend() == "smddp"
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank % torch.cuda.device_count())

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(300):
    rows = torch.randint(0, 1500, (64,), generator=torch.Generator().manual_seed(step))[rank::size]
    optimizer.zero_grad()
    F.cross_entropy(model(images[rows]), labels[rows]).backward()
    optimizer.step()

# What the original refused.
mean = torch.tensor([float(rank)])
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
assert mean.item() == (size - 1) / 2
dist.new_group([0])
for backend in ("gloo", "smddp"):
    members = dist.new_group(backend=backend)
    total = torch.ones(3)
    dist.all_reduce(total, group=members)
    assert total.tolist() == [size] * 3 and dist.get_backend(members) == backend
weight = model.module[0].weight.detach()
weights = [torch.empty_like(weight) for _ in range(size)]
dist.all_gather(weights, weight)
assert all(torch.equal(each, weight) for each in weights), "the ranks' weights differ"
dist.barrier()
accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
if rank == 0:
    print(f"accuracy {accuracy:.3f} on {size} ranks", flush=True)
dist.destroy_process_group()
