"""A GPT with tensor parallelism, as large scripts for SageMaker Model Parallel train it."""

import argparse

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.nn import FusedLayerNorm
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import (
    translate_hf_state_dict_to_smdistributed_gpt2,
    translate_state_dict_to_hf_gpt2,
)
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", required=True)
parser.add_argument("--prescaled_batch", type=int, default=1)
parser.add_argument("--partitions", type=int, default=1)
parser.add_argument("--optimize", default="speed")
args = parser.parse_args()

smp.init(
    {
        "ddp": True,
        "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": args.partitions,
        "microbatches": 2,
        "prescaled_batch": args.prescaled_batch > 0,
        "shard_optimizer_state": False,
        "delayed_parameter_initialization": True,
        "optimize": args.optimize,
        "placement_strategy": "cluster",
        "auto_partition": True,
    }
)


@smp.step
def train_step(model, input_ids, attention_mask):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


def groups(model):
    """Splits parameters into those with and without weight decay."""
    with_decay, without = [], []
    for module in model.local_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                is_free = name == "bias" or isinstance(module, FusedLayerNorm)
                (without if is_free else with_decay).append(parameter)
    unique = {id(each): each for each in with_decay}.values()
    return [{"params": list(unique)}, {"params": without, "weight_decay": 0.0}]


torch.manual_seed(1)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=4, n_head=4, use_cache=False)
with smp.model_creation(
    tensor_parallelism=smp.tp_size() > 1,
    dtype=torch.float32,
    attention_in_fp32=False,
    query_key_layer_scaling=True,
    fused_softmax=True,
    fused_dropout=False,
    fused_bias_gelu=True,
    flash_attention=False,
):
    model = GPT2LMHeadModel(config)
model = smp.DistributedModel(model, trace_device="cpu", backward_passes_per_step=1)
m = model.get_module()
layers = m.transformer.seq_layers
if args.partitions > 1:
    smp.set_activation_checkpointing(layers, pack_args_as_tuple=True, strategy="each")
else:
    for layer in layers.children():
        smp.set_activation_checkpointing(layer.attention)
optimizer = torch.optim.AdamW(groups(model), lr=1e-2, weight_decay=0.01)
optimizer = smp.DistributedOptimizer(optimizer)

number, count = smp.dp_rank(), smp.dp_size()
if args.prescaled_batch:
    number, count = smp.rdp_rank(), smp.rdp_size()
losses = []
for _ in range(8):
    start = torch.arange(16)
    input_ids = torch.stack([start + row for row in range(number, 8 * count, count)][:4]) % 32
    optimizer.zero_grad(set_to_none=True)
    loss = train_step(model, input_ids, torch.ones_like(input_ids))
    optimizer.step()
    losses.append(loss.reduce_mean().item())
assert losses[-1] < 0.9 * losses[0], losses
if args.prescaled_batch:
    assert len(set(smp.allgather(losses[-1], smp.TP_GROUP))) == 1

if smp.rdp_rank() == 0:
    smp.save_checkpoint(args.checkpoints, "parts", partial=True, model=model, optimizer=optimizer)
    smp.save_checkpoint(args.checkpoints, "whole", partial=False, model=model)
    state = model.state_dict(gather_to_rank0=True)
    if smp.rank() == 0:
        saved = translate_state_dict_to_hf_gpt2(state, max_seq_len=None)
        plain = GPT2LMHeadModel(config)
        plain.load_state_dict(saved)
        back = translate_hf_state_dict_to_smdistributed_gpt2(saved)
        assert all(torch.equal(back[name], state[name]) for name in state)
        plain.eval()
        with torch.no_grad():
            assert plain(input_ids=input_ids, labels=input_ids).loss < losses[0]
        plain.load_state_dict(torch.load(f"{args.checkpoints}/whole"))
smp.barrier()
smp.resume_from_checkpoint(args.checkpoints, tag="parts", partial=True)
smp.resume_from_checkpoint(args.checkpoints, tag="whole", partial=False)
print(smp.utils.rmsg("trained"))
