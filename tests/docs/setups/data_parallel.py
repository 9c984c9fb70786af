# needs: torch
# ranks: 2
import torch
import torch.distributed as dist

import smdp.torch

dist.init_process_group("smdp")
model = torch.nn.Linear(4, 4)
run()
model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
assert model.module.weight.grad.unique().tolist() == [1.0]  # the mean of 2 x 0 and 2 x 1
dist.destroy_process_group()
