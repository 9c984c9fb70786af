# needs: torch transformers accelerate
# ranks: 2
import torch

run()
ours = torch.tensor([data_parallel, model_parallel])
assert ours.shape == (2, 2) and ours[0, 1] < ours[0, 0]
assert torch.allclose(ours[0], ours[1], atol=1e-3)

import torch.distributed as dist

dist.barrier()
GPT2LMHeadModel.from_pretrained("model")
dist.barrier()
