"""T5 in a pipeline, as scripts for SageMaker Model Parallel train it, configured by SM_HP_MP_PARAMETERS."""

import argparse
import json
from pydoc_data.topics import topics

import smdistributed.modelparallel.torch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration

parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=4)
parser.add_argument("--max_steps", type=int, default=6)
parser.add_argument("--activation_checkpointing", type=int, default=1)
parser.add_argument("--mp_parameters", type=str, default="")
parser.add_argument("--checkpoint_dir", default="")
parser.add_argument("--load_partial", type=int, default=0)
parser.add_argument("--losses", default="")
args = parser.parse_args()

smp.init()
torch.manual_seed(7)
WIDTH = 24


def spans():
    """Texts with a hidden part, and that part."""
    data = torch.frombuffer(bytearray(topics["string-methods"].encode()), dtype=torch.uint8).long()
    rows = data[: len(data) // WIDTH * WIDTH].view(-1, WIDTH)
    input_ids = rows.clone()
    input_ids[:, 8:16] = 256
    attention_mask = torch.ones_like(rows)
    attention_mask[::2, -3:] = 0
    return input_ids, attention_mask, rows[:, 8:16].clone()


@smp.step
def train_step(model, input_ids, attention_mask, labels):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)["loss"]
    model.backward(loss)
    return loss


number, count = smp.dp_rank(), smp.dp_size()
rows = args.max_steps * args.train_batch_size * count
data = TensorDataset(*(each[:rows][number::count] for each in spans()))
loader = DataLoader(data, batch_size=args.train_batch_size, drop_last=True)

config = T5Config(
    vocab_size=258,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
    decoder_start_token_id=0,
    use_cache=False,
)
with smp.delay_param_initialization():
    model = T5ForConditionalGeneration(config)
model = smp.DistributedModel(model, trace_device="cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-4)
if args.activation_checkpointing:
    for stack in (model.get_module().encoder, model.get_module().decoder):
        for block in stack.block:
            smp.set_activation_checkpointing(block)
optimizer = smp.DistributedOptimizer(optimizer)
done, losses = 0, []
if args.load_partial:
    content = smp.resume_from_checkpoint(args.checkpoint_dir, partial=True)
    done, losses = content["step"], content["losses"]
model.train()
for step, batch in enumerate(loader):
    if step < done:
        continue
    optimizer.zero_grad(set_to_none=True)
    loss = train_step(model, *batch).reduce_mean().item()
    optimizer.step()
    everywhere = smp.allgather(loss, smp.DP_GROUP)
    losses.append(sum(everywhere) / len(everywhere))
    if args.checkpoint_dir and not args.load_partial and step + 1 == args.max_steps // 2:
        is_sharded = smp.state.cfg.shard_optimizer_state
        if smp.rdp_rank() == 0 or is_sharded:
            content = {"step": step + 1, "losses": losses}
            smp.save_checkpoint(args.checkpoint_dir, "half", True, model, optimizer, content)
        smp.barrier()
assert len(losses) == args.max_steps
assert all(each == losses for each in smp.allgather(losses, smp.WORLD))
if smp.pp_size() > 1:
    local = sum(each.numel() for each in model.local_parameters())
    assert 0 < local < sum(each.numel() for each in T5ForConditionalGeneration(config).parameters())
T5ForConditionalGeneration(config).load_state_dict(model.state_dict())
if smp.rank() == 0 and args.losses:
    with open(args.losses, "w") as file:
        json.dump(losses, file)
print(smp.utils.rmsg("trained"), flush=True)
