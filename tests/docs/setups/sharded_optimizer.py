# needs: torch
# ranks: 2
import os
import tempfile

run(0)
import torch.distributed as dist

other = smdp.torch.DistributedDataParallel(torch.nn.Linear(8, 1))
run(1, {"smdp": smdp, "model": other, "optimizer": torch.optim.AdamW(other.parameters())})

here = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(here)
os.chdir(here[0])
names = {
    "smdp": smdp,
    "torch": torch,
    "model": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)),
    "batch": torch.ones(8, 8),
}
run(2, names)
names["pipe"].train_step(names["batch"], lambda output, part: output.square().mean())
names["optimizer"].step()
before = [parameter.detach().clone() for parameter in model.parameters()]
for number in (3, 4, 5):  # saves and loads, in two ways, and reads the state
    run(number)
assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
assert optimizer.inner.state  # each rank has a part
dist.destroy_process_group()
