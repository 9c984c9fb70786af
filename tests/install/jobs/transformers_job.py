"""Two ranks train a tiny GPT-2 of random weights for two steps with smdp's Trainer."""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from smdp.transformers import DataParallel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=32))
data = [{"input_ids": row, "labels": row} for row in torch.randint(32, (16, 8))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=2, report_to="none", save_strategy="no", disable_tqdm=True
    )
    Trainer(model, arguments, train_dataset=data, plugins=[DataParallel()]).train()
total = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()]).sum()
others = [torch.empty_like(total) for _ in range(2)]
torch.distributed.all_gather(others, total)
assert torch.equal(others[0], others[1]), others
print("the result is right", flush=True)
