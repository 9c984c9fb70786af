"""A Trainer script that knows nothing of smdp: transformers takes its own path for SMDDP."""

import sys
import time
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import is_sagemaker_dp_enabled

assert is_sagemaker_dp_enabled()
shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 256}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
data = torch.frombuffer(bytearray(topics["assert"].encode() * 20), dtype=torch.uint8).long()
rows = [{"input_ids": row, "labels": row} for row in data[: len(data) // 32 * 32].view(-1, 32)]
often = {"eval_strategy": "steps", "logging_steps": 5, "eval_steps": 5, "save_steps": 5}
args = TrainingArguments(
    sys.argv[1],
    max_steps=20,
    learning_rate=1e-2,
    report_to=[],
    load_best_model_at_end=True,
    use_cpu="use_cpu" in sys.argv,
    **often,
)


class Slow(Trainer):
    """Writes slowly, as to a network's disk."""

    def _save(self, *given, **options):
        time.sleep(0.5)
        super()._save(*given, **options)


trainer = Slow(model, args, train_dataset=rows, eval_dataset=rows[:8])
trainer.train()
assert trainer.state.best_model_checkpoint.endswith("checkpoint-20"), trainer.state.best_model_checkpoint
assert torch.distributed.get_backend() == "smddp"
assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel"
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < losses[0]
weight = next(model.parameters()).detach()
parts = [torch.empty_like(weight) for _ in range(2)]
torch.distributed.all_gather(parts, weight)
assert torch.equal(*parts)
if args.process_index == 0:
    print(f"accuracy 1.000 on {args.world_size} ranks, {args.parallel_mode}", flush=True)
