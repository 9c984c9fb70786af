"""GPT-2 as large scripts for SageMaker Model Parallel train it, with a switch for each feature.

All keys are passed, also of features that are off. Only the first stage reads data. The model is built
without memory, and what was trained is loaded into a plain model in the end.
"""

import argparse
import contextlib
import json
from pydoc_data.topics import topics

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.test.torch.utils import dump_model, verify  # noqa: F401 - as scripts do
from smdistributed.modelparallel.torch.nn import FusedLayerNorm
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import (
    translate_hf_state_dict_to_smdistributed_gpt2,
    translate_state_dict_to_hf_gpt2,
)
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
for name, default in {
    "max_steps": 6,
    "train_batch_size": 4,
    "max_context_width": 32,
    "hidden_width": 32,
    "num_layers": 4,
    "num_heads": 4,
    "gradient_accumulation": 1,
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 1,
    "sharded_data_parallel_degree": 1,
    "microbatches": 2,
    "active_microbatches": 4,
    "activation_loading_horizon": 2,
    "use_distributed_transformer": 0,
    "manual_partition": 0,
    "activation_checkpointing": 0,
    "checkpoint_sublayers": 0,
    "offload_activations": 0,
    "shard_optimizer_state": 0,
    "prescaled_batch": 0,
    "delayed_param": 1,
    "skip_tracing": 0,
    "fp16": 0,
    "bf16": 0,
    "checkpoint_freq": 0,
    "load_partial": 0,
    "load_full": 0,
    "save_final_full_model": 0,
}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--lr", type=float, default=5e-3)
parser.add_argument("--grad_clip", type=float, default=1.0)
parser.add_argument("--optimize", default="speed")
parser.add_argument("--placement_strategy", default="cluster")
parser.add_argument("--activation_strategy", default="each")
parser.add_argument("--checkpoint-dir", default="checkpoints")
parser.add_argument("--model-dir", default="model")
parser.add_argument("--losses", default="")
args, _ = parser.parse_known_args()  # the launcher of SageMaker adds --mp_parameters

smp.init(
    {
        "ddp": True,
        "tensor_parallel_degree": args.tensor_parallel_degree,
        "pipeline_parallel_degree": args.pipeline_parallel_degree,
        "microbatches": args.microbatches,
        "active_microbatches": args.active_microbatches,
        "shard_optimizer_state": args.shard_optimizer_state > 0,
        "prescaled_batch": args.prescaled_batch > 0,
        "fp16": args.fp16 > 0,
        "bf16": args.bf16 > 0,
        "offload_activations": args.offload_activations > 0,
        "activation_loading_horizon": args.activation_loading_horizon,
        "delayed_parameter_initialization": args.delayed_param > 0,
        "optimize": args.optimize,
        "placement_strategy": args.placement_strategy,
        "skip_tracing": args.skip_tracing > 0,
        "auto_partition": not args.manual_partition,
        "default_partition": 0,
        "static_mode": False,
        "fast_mode": False,
        "sharded_data_parallel_degree": args.sharded_data_parallel_degree,
        "sdp_reduce_bucket_size": 2e8,
        "sdp_param_persistence_threshold": 1e3,
        "sdp_max_live_parameters": 1e8,
        "sdp_hierarchical_allgather": False,
        "sdp_gradient_clipping": args.grad_clip,
    }
)
number, count = smp.dp_rank(), smp.dp_size()
if args.prescaled_batch:
    number, count = smp.rdp_rank(), smp.rdp_size()
is_substituted = smp.tp_size() > 1 or args.use_distributed_transformer > 0


class Sentences(Dataset):
    """Bytes of a text; the batches of all replicas together are the same for any number of replicas."""

    def __init__(self):
        width = args.max_context_width
        data = torch.frombuffer(bytearray(topics["assignment"].encode()), dtype=torch.uint8).long()
        rows = data[: len(data) // width * width].view(-1, width)
        rows = rows[: args.max_steps * args.gradient_accumulation * args.train_batch_size * count]
        self.rows = rows[number::count]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], torch.ones(args.max_context_width, dtype=torch.int64)


class DummyDataset(Dataset):
    """What stages behind the first one read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.Tensor(0), torch.Tensor(0)


def create_dataloader():
    if smp.pp_rank() == 0:
        loader = DataLoader(Sentences(), batch_size=args.train_batch_size, drop_last=True)
        if smp.pp_size() > 1:
            smp.broadcast(len(loader), smp.PP_GROUP)
        return loader
    batches = smp.recv_from(0, smp.RankType.PP_RANK)
    return DataLoader(DummyDataset(batches * args.train_batch_size), args.train_batch_size, drop_last=True)


# smdistributed: the forward and backward of one batch.
@smp.step
def train_step(model, optimizer, input_ids, attention_mask, args):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss / args.gradient_accumulation)
    return loss


@smp.step
def test_step(model, input_ids, attention_mask):
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]


def get_param_groups_by_weight_decay(model):
    with_decay, without, seen = [], [], set()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                is_norm = isinstance(module, FusedLayerNorm | torch.nn.LayerNorm)
                (without if is_norm or name == "bias" else with_decay).append(parameter)
    return [{"params": with_decay, "weight_decay": 0.01}, {"params": without, "weight_decay": 0.0}]


def set_activation_checkpointing(layers):
    if is_substituted and not args.checkpoint_sublayers:
        smp.set_activation_checkpointing(layers, pack_args_as_tuple=True, strategy=args.activation_strategy)
        return
    for layer in layers.children():
        if args.checkpoint_sublayers:
            smp.set_activation_checkpointing(layer.attention if is_substituted else layer.attn)
            smp.set_activation_checkpointing(layer.output if is_substituted else layer.mlp)
        else:
            smp.set_activation_checkpointing(layer)


torch.manual_seed(0)
dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
config = GPT2Config(
    vocab_size=256,
    n_positions=args.max_context_width,
    n_embd=args.hidden_width,
    n_layer=args.num_layers,
    n_head=args.num_heads,
    use_cache=False,
    bos_token_id=0,
    eos_token_id=0,
    **dropouts,
)
dtype = torch.float16 if args.fp16 else torch.bfloat16 if args.bf16 else torch.float32
torch.set_default_dtype(dtype)
with smp.model_creation(
    tensor_parallelism=is_substituted,
    zero_init=False,
    dtype=dtype,
    distribute_embedding=args.sharded_data_parallel_degree > 1 and smp.tp_size() > 1,
    attention_in_fp32=False,
    fp32_residual_addition=False,
    query_key_layer_scaling=False,
    fused_softmax=True,
    fused_dropout=False,
    fused_bias_gelu=True,
    flash_attention=False,
):
    model = GPT2LMHeadModel(config)
torch.set_default_dtype(torch.float32)
model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=args.gradient_accumulation)
m = model.get_module()
while isinstance(getattr(m, "module", None), torch.nn.Module):
    m = m.module  # with fp16 there is one level more
layers = m.transformer.seq_layers if is_substituted else m.transformer.h
if args.manual_partition:
    for index, layer in enumerate(layers.children()):
        smp.set_partition(layer, index * smp.pp_size() // args.num_layers)
optimizer = torch.optim.AdamW(get_param_groups_by_weight_decay(m), lr=args.lr, eps=1e-4)
if args.activation_checkpointing:
    set_activation_checkpointing(layers)
optimizer = smp.DistributedOptimizer(
    optimizer,
    static_loss_scale=None,
    dynamic_loss_scale=True,
    dynamic_loss_args={"init_scale": 2.0**12, "scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer.optimizer if args.fp16 else optimizer, lambda step: 0.9**step
)
total_steps, losses = 0, []
if args.load_partial or args.load_full:
    found = smp.resume_from_checkpoint(
        args.checkpoint_dir if args.load_partial else args.model_dir,
        tag=None if args.load_partial else "fullmodel.pt",
        partial=not args.load_full,
        translate_function=translate_hf_state_dict_to_smdistributed_gpt2
        if args.load_full and is_substituted
        else None,
    )
    if args.load_partial:
        total_steps, losses = found["total_steps"], found["losses"]
        scheduler.load_state_dict(found["lr_scheduler"])

loader = create_dataloader()
passes = 0
model.train()
for batch, (input_ids, attention_mask) in enumerate(loader):
    if batch < total_steps * args.gradient_accumulation:
        continue
    if passes % args.gradient_accumulation == 0:
        optimizer.zero_grad(set_to_none=True)
        told = 0.0
    loss_mb = train_step(model, optimizer, input_ids, attention_mask, args)
    told += loss_mb.reduce_mean().item() / args.gradient_accumulation
    passes += 1
    if passes % args.gradient_accumulation:
        continue
    if args.fp16 and args.sharded_data_parallel_degree == 1:
        assert optimizer.clip_master_grads(args.grad_clip) != -1
    optimizer.step()
    if not (args.fp16 and optimizer.overflow):
        scheduler.step()
    total_steps += 1
    everywhere = smp.allgather(told, smp.DP_GROUP)
    losses.append(sum(everywhere) / len(everywhere))
    if args.checkpoint_freq and total_steps % args.checkpoint_freq == 0:
        content = {"total_steps": total_steps, "losses": losses, "lr_scheduler": scheduler.state_dict()}
        content |= {"cli_args": vars(args), "model_config": config}
        is_sharded = args.shard_optimizer_state > 0 or args.sharded_data_parallel_degree > 1
        if smp.rdp_rank() == 0 or is_sharded:
            smp.save_checkpoint(
                args.checkpoint_dir,
                tag=f"total_steps{total_steps}",
                partial=True,
                model=model,
                optimizer=optimizer,
                user_content=content,
                num_kept_partial_checkpoints=2,
            )
        smp.barrier()
assert total_steps == args.max_steps

model.eval()
with torch.no_grad():
    tested = test_step(model, input_ids, attention_mask).reduce_mean().item()
assert all(each == losses for each in smp.allgather(losses, smp.WORLD))
if args.manual_partition and not is_substituted:
    # An embedding and what runs last on partition 0, an equal share of the layers on each.
    names = {name.split(".")[1] for name, _ in model.local_named_parameters()}
    assert names == ({"wte", "wpe", "h", "ln_f"} if smp.pp_rank() == 0 else {"h"}), names
if args.save_final_full_model:
    if smp.rdp_rank() == 0 or args.sharded_data_parallel_degree > 1:
        smp.save_checkpoint(args.model_dir, tag="fullmodel.pt", partial=False, model=model)
    smp.barrier()
    if smp.rank() == 0:
        plain = GPT2LMHeadModel(config)
        saved = torch.load(f"{args.model_dir}/fullmodel.pt")
        plain.load_state_dict(saved, strict=args.sharded_data_parallel_degree == 1)
        plain.tie_weights()
        plain.eval().to(dtype)
        with torch.no_grad():
            loss = plain(input_ids=input_ids, labels=input_ids).loss.item()
        assert abs(loss - tested) < (1e-4 if dtype == torch.float32 else 2e-2), (loss, tested)
        if is_substituted:
            back = translate_state_dict_to_hf_gpt2(translate_hf_state_dict_to_smdistributed_gpt2(saved), None)
            assert all(torch.equal(back[name], saved[name]) for name in saved)
if smp.rank() == 0 and args.losses:
    with open(args.losses, "w") as file:
        json.dump(losses, file)
with contextlib.suppress(BrokenPipeError):
    print(smp.utils.rmsg("trained"), flush=True)
