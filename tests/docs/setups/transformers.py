# needs: torch transformers accelerate
# ranks: 2
run()
import torch.distributed as dist

assert accelerator.num_processes == 2 and dist.get_backend() == "smdp"
dist.destroy_process_group()
