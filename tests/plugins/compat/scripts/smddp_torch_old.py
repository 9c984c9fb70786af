"""A script as users of SMDDP 1.0 wrote it: its torch.distributed and its DDP, started at module top."""

import argparse

import smdistributed.dataparallel.torch.distributed as dist
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

dist.init_process_group()

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--local-rank", type=int, default=dist.get_local_rank())
args = parser.parse_args()

torch.manual_seed(0)
world_size, rank = dist.get_world_size(), dist.get_rank()
args.batch_size //= world_size
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=world_size, rank=rank)
loader = torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler, num_workers=1)

net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(1024, 10),
).to(device)
model = DDP(net, device_ids=[args.local_rank], broadcast_buffers=False)
optimizer = torch.optim.Adam(model.parameters(), 1e-3 * world_size)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()

right = (model(images[1500:].to(device)).argmax(1).cpu() == labels[1500:]).sum().to(torch.float32)
mean = torch.tensor([float(rank)])
dist.all_reduce(mean, dist.ReduceOp.AVERAGE)
assert mean.item() == (world_size - 1) / 2
dist.all_reduce(right, dist.ReduceOp.AVERAGE)
parts = [torch.zeros_like(net[0].weight) for _ in range(world_size)]
dist.all_gather(parts, net[0].weight.detach())
assert all(torch.equal(part, parts[0]) for part in parts)
dist.barrier()
if rank == 0:
    print(f"accuracy {right.item() / 297:.3f} on {world_size} ranks", flush=True)
