"""A Trainer script with smdp's plugin, on transformers' own path for SMDDP."""

import sys
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.utils import is_sagemaker_dp_enabled

import smdp.torch
from smdp.transformers import DataParallel, Trainer

assert is_sagemaker_dp_enabled()
shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 256}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
data = torch.frombuffer(bytearray(topics["assert"].encode() * 20), dtype=torch.uint8).long()
rows = [{"input_ids": row, "labels": row} for row in data[: len(data) // 32 * 32].view(-1, 32)]
args = TrainingArguments(
    sys.argv[1], max_steps=20, learning_rate=1e-2, logging_steps=5, report_to=[], save_strategy="no"
)
trainer = Trainer(model, args, train_dataset=rows, plugins=[DataParallel("bf16")])
trainer.train()
assert torch.distributed.get_backend() == "smddp"
assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)
assert any("smdp_exposed_ms" in entry for entry in trainer.state.log_history)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < losses[0]
weight = next(model.parameters()).detach()
parts = [torch.empty_like(weight) for _ in range(2)]
torch.distributed.all_gather(parts, weight)
assert torch.equal(*parts)
if args.process_index == 0:
    print(f"accuracy 1.000 on {args.world_size} ranks, {args.parallel_mode}", flush=True)
