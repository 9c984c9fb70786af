"""A Trainer script with smdp's plugin, on transformers' own path for SMDDP."""

import sys
from pydoc_data.topics import topics

import torch
import transformers
from accelerate.state import AcceleratorState
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.utils import is_sagemaker_dp_enabled

import smdp.compat
import smdp.torch
from smdp.transformers import DataParallel, Trainer

assert is_sagemaker_dp_enabled()
shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 256}
data = torch.frombuffer(bytearray(topics["assert"].encode() * 20), dtype=torch.uint8).long()
rows = [{"input_ids": row, "labels": row} for row in data[: len(data) // 32 * 32].view(-1, 32)]


def made(trainer_class, batch, arguments=(), **options):
    torch.manual_seed(0)
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**shape, **off, bos_token_id=0, eos_token_id=0))
    given = {"max_steps": 20, "logging_steps": 5, "report_to": [], "save_strategy": "no", **dict(arguments)}
    args = TrainingArguments(sys.argv[1], per_device_train_batch_size=batch, learning_rate=1e-2, **given)
    return trainer_class(model, args, train_dataset=rows, **options)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


trainer = made(Trainer, 8, plugins=[DataParallel("bf16")])
trainer.train()
assert torch.distributed.get_backend() == "smddp"
assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)
assert any("smdp_exposed_ms" in entry for entry in trainer.state.log_history)
assert losses(trainer)[-1] < losses(trainer)[0]
weight = next(trainer.model.parameters()).detach()
parts = [torch.empty_like(weight) for _ in range(2)]
torch.distributed.all_gather(parts, weight)
assert torch.equal(*parts)


# What the Trainer's own way there leaves out: autocast, the compiler, DDP's arguments.
def dtypes(trainer):
    """Train, and give the dtypes in which a layer computed."""
    seen = set()
    trainer.model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda *layer: seen.add(layer[2].dtype))
    trainer.train()
    return seen


short = {"max_steps": 2, "use_cpu": True, "bf16": True, "ddp_find_unused_parameters": True}
AcceleratorState._reset_state()  # which keeps the precision that the first Trainer asked for
for kind, plugins in ((Trainer, {"plugins": [DataParallel()]}), (transformers.Trainer, {})):
    mixed = made(kind, 8, short, eval_dataset=rows[:8], **plugins)
    mixed.evaluate()  # after which Accelerate would wrap nothing
    assert dtypes(mixed) == {torch.bfloat16}, kind
    assert isinstance(mixed.model_wrapped, torch.nn.parallel.DistributedDataParallel), kind
    assert plugins or mixed.model_wrapped.find_unused_parameters
AcceleratorState._reset_state()
compiled = made(Trainer, 8, {"max_steps": 2, "torch_compile_backend": "aot_eager"}, plugins=[DataParallel()])
compiled.train()
assert isinstance(compiled.model_wrapped, torch._dynamo.OptimizedModule)

report = f"accuracy 1.000 on {trainer.args.world_size} ranks, {trainer.args.parallel_mode}"
rank = trainer.args.process_index

# Each rank's log has what one process logs that trains on all.
torch.distributed.destroy_process_group()
smdp.compat.uninstall()
AcceleratorState._reset_state(True)
alone = made(transformers.Trainer, 16)
alone.train()
assert alone.args.world_size == 1
torch.testing.assert_close(torch.tensor(losses(trainer)), torch.tensor(losses(alone)), rtol=0, atol=1e-4)
if rank == 0:
    print(report, flush=True)
