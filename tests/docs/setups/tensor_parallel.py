# needs: torch transformers
# ranks: 2
import torch.distributed as dist

run(0)
assert model.transformer.h[0].mlp.c_fc.weight.shape == (64, 128)
skip(1, "it takes four ranks; the tests of pipelines and of the Trainer divide layers")
run(2)
assert model[0].weight.shape == (32, 16)
dist.destroy_process_group()
