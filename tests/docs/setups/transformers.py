# needs: torch transformers accelerate trl datasets
# ranks: 2
import os

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

run(2)
assert accelerator.num_processes == 2 and dist.get_backend() == "smdp"
dist.destroy_process_group()
