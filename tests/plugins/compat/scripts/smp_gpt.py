"""A GPT trained as large scripts for SageMaker Model Parallel do it.

All keys are passed, also of features that are off. Layers are put on partitions by hand, and what runs last
stays on partition 0. Only the first stage reads data. The model is built without memory.
"""

import argparse

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.test.torch.utils import dump_model, verify  # noqa: F401 - as scripts do
from smdistributed.modelparallel.torch.nn import FusedLayerNorm  # noqa: F401
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import translate_state_dict_to_hf_gpt2  # noqa: F401
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default=None)
args = parser.parse_args()
args.batch_size = 4
args.length = 16

smp.init(
    {
        "ddp": True,
        "tensor_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "microbatches": 2,
        "active_microbatches": 4,
        "shard_optimizer_state": False,
        "prescaled_batch": False,
        "fp16": False,
        "bf16": False,
        "offload_activations": False,
        "activation_loading_horizon": 2,
        "delayed_parameter_initialization": True,
        "optimize": "speed",
        "placement_strategy": "cluster",
        "skip_tracing": False,
        "auto_partition": False,
        "default_partition": 0,
        "static_mode": False,
        "fast_mode": False,
        "sharded_data_parallel_degree": 1,
        "sdp_reduce_bucket_size": 2e8,
        "sdp_param_persistence_threshold": 1e5,
        "sdp_max_live_parameters": 1e8,
        "sdp_hierarchical_allgather": False,
        "sdp_gradient_clipping": 0.5,
    }
)


class Sentences(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        start = torch.arange(args.length) + index
        return start % 32, torch.ones(args.length, dtype=torch.int64)


class Nothing(Dataset):
    """What stages behind the first one read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.Tensor(0), torch.Tensor(0)


@smp.step
def train_step(model, optimizer, input_ids, attention_mask, args):
    assert input_ids.shape == (args.batch_size // 2, args.length)
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


@smp.step
def test_step(model, input_ids, attention_mask):
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]


def loader():
    if smp.pp_rank() > 0:
        batches = smp.recv_from(0, smp.RankType.PP_RANK)
        return DataLoader(Nothing(batches * args.batch_size), batch_size=args.batch_size, drop_last=True)
    found = DataLoader(Sentences(), batch_size=args.batch_size, drop_last=True)
    smp.broadcast(len(found), smp.PP_GROUP)
    return found


torch.manual_seed(0)
config = GPT2Config(vocab_size=32, n_positions=args.length, n_embd=16, n_layer=4, n_head=2, use_cache=False)
with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=torch.float32, fused_softmax=True):
    model = GPT2LMHeadModel(config)
model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=1)
transformer = model.get_module().transformer
for index, layer in enumerate(transformer.h.children()):
    smp.set_partition(layer, index // 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for layer in transformer.h.children():
    smp.set_activation_checkpointing(layer)
optimizer = smp.DistributedOptimizer(
    optimizer,
    static_loss_scale=None,
    dynamic_loss_scale=True,
    dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

batches = loader()
losses = []
for _ in range(3):
    model.train()
    for input_ids, attention_mask in batches:
        optimizer.zero_grad(set_to_none=True)
        losses.append(train_step(model, optimizer, input_ids, attention_mask, args).reduce_mean().item())
        assert not optimizer.overflow
        optimizer.step()
        scheduler.step()
model.eval()
with torch.no_grad():
    tested = test_step(model, *next(iter(batches))).reduce_mean().item()

assert losses[-1] < 0.9 * losses[0], losses
assert tested < 0.9 * losses[0], (tested, losses)
assert all(each == losses for each in smp.allgather(losses, smp.PP_GROUP))
# An embedding and what runs last on partition 0, half of the layers on each.
names = {name.split(".")[1] for name, _ in model.local_named_parameters()}
assert names == ({"wte", "wpe", "h", "ln_f"} if smp.pp_rank() == 0 else {"h"}), names
if args.checkpoints is not None:
    content = {"total_steps": len(losses), "lr_scheduler": scheduler.state_dict(), "cli_args": vars(args)}
    options = {"user_content": content, "num_kept_partial_checkpoints": 2}
    smp.save_checkpoint(args.checkpoints, "last", model=model, optimizer=optimizer, **options)
smp.barrier()
print(smp.utils.rmsg("trained"))
