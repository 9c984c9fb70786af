"""The peak memory and the step time of one process that trains a GPT-2, with activations on a disk or not.

Memory is what a process holds at most during some steps, less what it holds before the first one:
activations, gradients and temporary tensors.

    python tests/benchmarks/offloaded_memory.py --directory /scratch
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("plain", "checkpoint", "offload", "checkpoint, offload")
_WARM, _STEPS = 2, 3


def held(key: str) -> int:
    """Returns a number of bytes of this process, such as VmRSS or VmHWM, the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"the system does not tell {key}")


def train(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Trains, and returns the most bytes and the seconds of the fastest step."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import smdp.torch

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.width // 64,
        n_positions=options.length,
        vocab_size=2048,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        loss_type="ForCausalLMLoss",
    )
    model = GPT2LMHeadModel(config).train()
    if "checkpoint" in kind:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if "offload" in kind:
        smdp.torch.offload_activations(model, f"disk:{options.directory}", options.horizon)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(2048, (options.batch, options.length))
    before, seconds, loss = held("VmRSS"), [], 0.0
    for step in range(_WARM + _STEPS):
        if step == _WARM:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the most so far
        start = time.perf_counter()
        optimizer.zero_grad()
        found = model(tokens, labels=tokens).loss
        found.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        loss = found.item()
    return {"bytes": held("VmHWM") - before, "seconds": min(seconds[_WARM:]), "loss": loss}


def main() -> None:
    """Prints one line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="/tmp")
    parser.add_argument("--horizon", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--kind", choices=KINDS, help="train in this process")
    options = parser.parse_args()
    if options.kind is not None:
        print(json.dumps(train(options.kind, options)))
        return
    print(f"{'':22}{'peak, MiB':>12}{'step, s':>10}{'loss':>22}")
    for kind in KINDS:
        command = [sys.executable, __file__, *sys.argv[1:], "--kind", kind]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{kind:22}{found['bytes'] / 2**20:12.0f}{found['seconds']:10.2f}{found['loss']:22.17f}")


if __name__ == "__main__":
    main()
