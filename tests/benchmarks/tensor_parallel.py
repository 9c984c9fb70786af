"""A training step of a Llama over two ranks beside one process and DTensor, one thread per rank.

Start it on two ranks: smdp run -n 2 tests/benchmarks/tensor_parallel.py
Contenders train the same model on the same tokens, in turn. The fastest and the median step of rank 0 are
printed. Rank 1 sleeps while rank 0 trains the model in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

import smdp.torch

_STYLES: dict[str, Any] = {
    **{f"self_attn.{name}_proj": ColwiseParallel for name in "qkv"},
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}


def llama(options: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=options.width,
            intermediate_size=options.inner,
            num_hidden_layers=options.layers,
            num_attention_heads=16,
            num_key_value_heads=16,
            vocab_size=options.vocabulary,
            use_cache=False,
        )
    )


def with_dtensor(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """Divides the layers as torch's documentation divides those of a Llama; the head stays whole."""
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for layer in model.get_submodule("model.layers").children():
        parallelize_module(layer, mesh, {name: style() for name, style in _STYLES.items()})
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", help="names of contenders, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    world, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    kinds: dict[str, Callable[[], nn.Module]] = {
        "one process": lambda: llama(options),
        "tensor_parallel": lambda: smdp.torch.tensor_parallel(llama(options), 2),
        "sequence_parallel": lambda: smdp.torch.tensor_parallel(llama(options), 2, sequence_parallel=True),
        "DTensor on smdp": lambda: with_dtensor(llama(options), world),
        "DTensor on gloo": lambda: with_dtensor(llama(options), gloo),
    }
    if options.only:
        kinds = {name: kinds[name] for name in options.only.split(",")}
    models = {name: make() for name, make in kinds.items()}
    made = {name: (model, AdamW(model.parameters(), lr=1e-4)) for name, model in models.items()}
    torch.manual_seed(1)
    tokens = torch.randint(options.vocabulary, (options.batch, options.tokens))
    steps: dict[str, list[list[float]]] = {name: [] for name in made}
    losses: dict[str, float] = {}
    for round_ in range(-2, options.rounds):
        for name, (model, optimizer) in made.items():
            # Waiting in this barrier takes no processor time.
            dist.barrier(group=gloo)
            if name == "one process" and dist.get_rank() != 0:
                continue
            times, losses[name] = step(model, optimizer, tokens)
            if round_ >= 0:
                steps[name].append(times)
    if dist.get_rank() == 0:
        show(steps, losses)
    dist.barrier(group=gloo)
    dist.destroy_process_group()


def show(steps: dict[str, list[list[float]]], losses: dict[str, float]) -> None:
    print(f"{'':18}{'fastest':>9}{'':7}{'median':>9}{'':7} forward backward   update  loss")
    sums = {name: [sum(parts) for parts in found] for name, found in steps.items()}
    first = "tensor_parallel" if "tensor_parallel" in sums else next(iter(sums))
    for name, found in sums.items():
        shown = ""
        for of in (min, statistics.median):
            shown += f"{1e3 * of(found):6.0f} ms {of(found) / of(sums[first]):5.2f} x"
        medians = [1e3 * statistics.median(each) for each in zip(*steps[name], strict=True)]
        print(f"{name:18}{shown} {'ms '.join(f'{each:6.0f}' for each in medians)}ms  {losses[name]:.6f}")


def step(model: nn.Module, optimizer: Optimizer, tokens: Tensor) -> tuple[list[float], float]:
    """Returns the seconds of forward, backward and update, and the loss."""
    begin = time.perf_counter()
    loss = model(input_ids=tokens, labels=tokens).loss
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    update = time.perf_counter()
    return [forward - begin, backward - forward, update - backward], loss.item()


if __name__ == "__main__":
    main()
