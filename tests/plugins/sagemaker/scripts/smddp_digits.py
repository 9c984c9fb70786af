"""A script as Amazon's guides for SMDDP have it, on scikit-learn's digits."""

import argparse
import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
options = parser.parse_args()
dist.init_process_group(backend="smddp")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(options.epochs):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[rank:1500:size]), y[rank:1500:size]).backward()
    optimizer.step()
accuracy = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
print(
    f"accuracy {accuracy:.3f}, rank {rank} of {size}, local {os.environ['SMDATAPARALLEL_LOCAL_RANK']}",
    flush=True,
)
dist.barrier()
if rank == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt"))
