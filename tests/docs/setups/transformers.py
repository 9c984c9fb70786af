# needs: torch transformers accelerate trl datasets
# ranks: 2
import os

import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import smdp.torch

folder = f"model{os.environ['RANK']}"
tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate("eabcd")}, []))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="e", pad_token="e").save_pretrained(folder)
GPT2LMHeadModel(GPT2Config(vocab_size=5, n_positions=16, n_embd=8, n_layer=1, n_head=1)).save_pretrained(
    folder
)
model = AutoModelForCausalLM.from_pretrained(folder)
data = Dataset.from_dict({"text": ["abcd", "dcba"] * 8})
run(0)
trainer.train()
assert trainer.args.world_size == 2 and trainer.state.global_step == 3
assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)

model = AutoModelForCausalLM.from_pretrained(folder)
data = [{"input_ids": torch.tensor([1, 2, 3, 4]), "labels": torch.tensor([1, 2, 3, 4])}] * 16
run(1)
trainer.train()
assert isinstance(trainer.optimizer.optimizer, smdp.torch.ShardedOptimizer)

run(3)
assert accelerator.num_processes == 2 and dist.get_backend() == "smdp"
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.ones(4, 2))
run(4)
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
assert isinstance(optimizer.optimizer, smdp.torch.ShardedOptimizer)
optimizer.optimizer.consolidate()
if dist.get_rank() == 0:
    assert optimizer.state_dict()["state"][0]["step"] == 2
dist.destroy_process_group()
