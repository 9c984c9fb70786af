"""Accelerate with the backend "smddp" by name, on the CPU: the gradient is the mean over the ranks."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs

for cpu in (False, True):
    handler = InitProcessGroupKwargs(backend="smddp")
    accelerator = Accelerator(cpu=cpu, kwargs_handlers=[handler])
    assert dist.get_backend() == accelerator.state.backend == "smddp"
    assert accelerator.num_processes == 2
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    model(torch.full((1, 2), accelerator.process_index + 1.0)).sum().backward()
    (gradient,) = (p.grad for p in model.parameters() if p.ndim == 2)
    assert gradient.tolist() == [[1.5, 1.5]], (cpu, type(model), gradient)
    dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
print("all is right on 2 ranks", flush=True)
