# needs: torch
# ranks: 2
import os
import tempfile

run(0)
import torch.distributed as dist

here = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(here)
os.chdir(here[0])
before = [parameter.detach().clone() for parameter in model.parameters()]
run(1)
assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
assert optimizer.inner.state  # each rank has a part
dist.destroy_process_group()
