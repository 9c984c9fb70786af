# needs: torch
# ranks: 2
import torch
import torch.distributed as dist

import smdp.torch

dist.init_process_group("smdp")
inputs = torch.full((2, 4), float(dist.get_rank()))
model = torch.nn.Linear(4, 4)
run(0)
model(inputs).sum().backward()
assert model.module.weight.grad.unique().tolist() == [1.0]  # the mean of 2 x 0 and 2 x 1

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
run(1)
before = model.module[0].weight.detach().clone()
model(inputs).sum().backward()
optimizer.step()
assert torch.equal(model.module[0].weight, before)  # its step comes in the next forward
model(inputs)
assert not torch.equal(model.module[0].weight, before)
dist.destroy_process_group()
