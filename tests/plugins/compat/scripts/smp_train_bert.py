"""BERT's pre-training, as scripts for SageMaker Model Parallel do it, configured by SM_HP_MP_PARAMETERS."""

import argparse
import json
from pydoc_data.topics import topics

import smdistributed.modelparallel.torch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForPreTraining

parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=4)
parser.add_argument("--max_steps", type=int, default=6)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--amp", type=int, default=0)
parser.add_argument("--mp_parameters", type=str, default="")
parser.add_argument("--output_dir", default="")
parser.add_argument("--resume_step", type=int, default=0)
parser.add_argument("--losses", default="")
args = parser.parse_args()

smp.init()
torch.manual_seed(12)
LENGTH, MASK = 32, 256


def pretraining_data():
    """Pairs of pieces of a text, some of them swapped, with tokens that are hidden."""
    text = torch.frombuffer(bytearray(topics["typesseq"].encode()), dtype=torch.uint8).long()
    rows = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    generator = torch.Generator().manual_seed(3)
    is_next = torch.rand(len(rows), generator=generator) < 0.5
    rows = torch.where(is_next[:, None], rows, rows.roll(LENGTH // 2, 1))
    is_hidden = torch.rand(rows.shape, generator=generator) < 0.2
    is_hidden[:, 0] = True
    input_mask = torch.ones_like(rows)
    input_mask[::3, -4:] = 0
    segment_ids = torch.zeros_like(rows)
    segment_ids[:, LENGTH // 2 :] = 1
    labels = torch.where(is_hidden, rows, -100)
    return rows.masked_fill(is_hidden, MASK), segment_ids, input_mask, labels, (~is_next).long()


class BertPretrainingCriterion(torch.nn.Module):
    def forward(self, prediction_scores, seq_relationship_score, masked_lm_labels, next_sentence_labels):
        # A mean over rows, so that it does not depend on how many tokens of a microbatch are hidden.
        masked = torch.nn.functional.cross_entropy(
            prediction_scores.float().transpose(1, 2), masked_lm_labels, reduction="none"
        ).sum(1) / (masked_lm_labels >= 0).sum(1)
        return masked.mean() + torch.nn.functional.cross_entropy(
            seq_relationship_score.float(), next_sentence_labels
        )


@smp.step
def train_step(model, criterion, scaler, args, *batch):
    input_ids, segment_ids, input_mask, masked_lm_labels, next_sentence_labels = batch
    with torch.autocast("cpu", torch.bfloat16, enabled=args.amp > 0):
        output = model(input_ids=input_ids, token_type_ids=segment_ids, attention_mask=input_mask)
    loss = criterion(
        output.prediction_logits, output.seq_relationship_logits, masked_lm_labels, next_sentence_labels
    )
    loss = loss / args.gradient_accumulation_steps
    model.backward(scaler.scale(loss) if args.amp else loss)
    return loss


number, count = smp.dp_rank(), smp.dp_size()
if smp.state.cfg.prescaled_batch:
    number, count = smp.rdp_rank(), smp.rdp_size()
rows = args.max_steps * args.gradient_accumulation_steps * args.train_batch_size * count
data = TensorDataset(*(each[:rows][number::count] for each in pretraining_data()))
loader = DataLoader(data, batch_size=args.train_batch_size, drop_last=True)

config = BertConfig(
    vocab_size=258,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
with smp.tensor_parallelism(enabled=smp.tp_size() > 1):
    model = BertForPreTraining(config)
model = smp.DistributedModel(model, backward_passes_per_step=args.gradient_accumulation_steps)
decayed = [each for name, each in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
kept = {id(each) for each in decayed}
groups = [
    {"params": decayed, "weight_decay": 0.01},
    {"params": [each for each in model.parameters() if id(each) not in kept], "weight_decay": 0.0},
]
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(groups, lr=5e-3, eps=1e-4))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
scaler = smp.amp.GradScaler(init_scale=2.0**8, enabled=args.amp > 0)
global_step, losses = 0, []
if args.resume_step:
    checkpoint = smp.load(f"{args.output_dir}/ckpt_{args.resume_step}.pt", partial=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    global_step, losses = args.resume_step, checkpoint["losses"]

model.train()
told = 0.0
for training_step, batch in enumerate(loader):
    if training_step < global_step * args.gradient_accumulation_steps:
        continue
    told += train_step(model, BertPretrainingCriterion(), scaler, args, *batch).reduce_mean().item()
    if (training_step + 1) % args.gradient_accumulation_steps:
        continue
    if args.amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    global_step += 1
    everywhere = smp.allgather(told, smp.DP_GROUP)
    losses.append(sum(everywhere) / len(everywhere))
    told = 0.0
    if args.output_dir and not args.resume_step and global_step == args.max_steps // 2:
        checkpoint = {
            "model": model.local_state_dict(),
            "optimizer": optimizer.local_state_dict(),
            "scheduler": scheduler.state_dict(),
            "losses": losses,
        }
        if smp.rdp_rank() == 0:
            smp.save(checkpoint, f"{args.output_dir}/ckpt_{global_step}.pt", partial=True)
        smp.barrier()
assert global_step == args.max_steps
assert all(each == losses for each in smp.allgather(losses, smp.WORLD))
state = model.state_dict()  # on all ranks
for to_theirs, _ in smp.state.module_manager.translate_functions:
    state = to_theirs(state)
BertForPreTraining(config).load_state_dict(state)
if smp.rank() == 0 and args.losses:
    with open(args.losses, "w") as file:
        json.dump(losses, file)
print(smp.utils.rmsg("trained"), flush=True)
