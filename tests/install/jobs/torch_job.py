"""Two ranks train one step with DistributedDataParallel; their parameters are the same bits."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("smdp")  # known to torch without an import of smdp
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
torch.manual_seed(1 + dist.get_rank())
model(torch.randn(16, 8)).square().mean().backward()
with torch.no_grad():
    for parameter in model.parameters():
        parameter -= 0.1 * parameter.grad
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
others = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(others, mine)
assert all(torch.equal(other, mine) for other in others)
dist.destroy_process_group()
print("the result is right", flush=True)
