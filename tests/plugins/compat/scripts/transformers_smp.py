"""A Trainer script that knows nothing of smdp: transformers 4.57 has a path of its own for SMP."""

import contextlib
import sys
from pydoc_data.topics import topics

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.utils import is_sagemaker_mp_enabled

assert is_sagemaker_mp_enabled() or sys.argv[1] == "alone"
set_seed(0)
shape = {"n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 32, "vocab_size": 256}
shape |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
context = contextlib.nullcontext()
if is_sagemaker_mp_enabled():
    import smdistributed.modelparallel.torch as smp

    context = smp.tensor_parallelism(enabled=smp.tp_size() > 1)
with context:
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
data = torch.frombuffer(bytearray(topics["assert"].encode() * 20), dtype=torch.uint8).long()
first = torch.tensor([-100])  # not predicted; on its own path the Trainer divides by what is counted there
rows = [
    {"input_ids": row, "labels": torch.cat([first, row[1:]])}
    for row in data[: len(data) // 32 * 32].view(-1, 32)
]
args = TrainingArguments(
    sys.argv[2],
    max_steps=int(sys.argv[3]),
    per_device_train_batch_size=int(sys.argv[4]),
    lr_scheduler_type="constant",
    per_device_eval_batch_size=8,
    learning_rate=1e-2,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=10,
    save_strategy="steps",
    save_steps=10,
    report_to=[],
    use_cpu=sys.argv[1] == "alone",
)


def right(prediction):
    guesses = prediction.predictions[:, :-1].argmax(-1)
    return {"right": float(np.mean(guesses == prediction.label_ids[:, 1:])), "count": len(guesses)}


trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows[:24], compute_metrics=right)
trainer.train(resume_from_checkpoint=len(sys.argv) > 5)
if is_sagemaker_mp_enabled():
    local = list(trainer.model_wrapped.local_parameters())
    assert {each.dtype for each in local} == {torch.float16 if smp.state.cfg.fp16 else torch.float32}
    whole = sum(each.numel() for each in GPT2LMHeadModel(GPT2Config(**shape)).parameters())
    assert sum(each.numel() for each in local) < whole  # some of the layers, or a slice of each
losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
metrics = [entry for entry in trainer.state.log_history if "eval_right" in entry][-1]
if trainer.is_world_process_zero():
    torch.save({"losses": losses, "metrics": metrics}, f"{sys.argv[2]}/found.pt")
    print(f"accuracy 1.000 on {torch.distributed.get_world_size() if sys.argv[1] != 'alone' else 1} ranks")
