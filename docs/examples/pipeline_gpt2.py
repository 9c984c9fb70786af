"""Train a GPT-2 language model that is split over processes, save it, and go on with other stages.

    smdp run -n 2 docs/examples/pipeline_gpt2.py --output gpt2
    smdp run -n 4 docs/examples/pipeline_gpt2.py --output gpt2 --stages 4 --resume gpt2/step-20

The second run proves first that every parameter, and all of the optimizer's state, is what the first one had,
bit for bit; if not, its exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from text_model import make_model, make_rows

import smdp.torch
from smdp.torch.model_parallel import checkpoint

BATCH = 16  # rows per step
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("pipeline-gpt2"))
    parser.add_argument("--resume", type=Path, help="a checkpoint, OUTPUT/step-N")
    options = parser.parse_args()

    dist.init_process_group("smdp")
    rows, held_out = make_rows()
    pipe = smdp.torch.pipeline(
        make_model(),
        options.stages,
        options.microbatches,
        options.schedule,
        example_inputs=batch_of(rows[:BATCH]),
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)
    say(split_of(pipe))

    done = 0
    if options.resume:
        done = resume(options.resume, pipe, optimizer)
    folder = options.output / f"step-{done + options.steps}"
    if folder.exists():
        sys.exit(f"{folder} exists; give another --output")

    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    start = time.perf_counter()
    for step in range(done, done + options.steps):
        batch = batch_of([rows[row] for row in order[step * BATCH : (step + 1) * BATCH]])
        optimizer.zero_grad()
        loss = pipe.train_step(batch)
        optimizer.step()
        if (step + 1) % 5 == 0:
            seconds = (time.perf_counter() - start) / (step + 1 - done)
            speed = batch["input_ids"].numel() / seconds
            say(f"step {step + 1}: loss {loss:.3f}, {speed:.0f} bytes of text/s")
    pipe.eval()
    say(f"held-out text: loss {pipe.eval_step(batch_of(held_out[:BATCH])):.3f} per byte")

    checkpoint.save(folder, pipe, optimizer)
    found = {"step": done + options.steps, "digests": digests(pipe, optimizer)}
    checkpoint.save_safetensors(folder / "transformers", pipe)
    if dist.get_rank() == 0:
        (folder / "digests.json").write_text(json.dumps(found, indent=1))
        pipe.module.config.save_pretrained(folder / "transformers")
    say(f"saved {folder}, and {folder / 'transformers'} for from_pretrained()")
    dist.destroy_process_group()


def batch_of(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def split_of(pipe: smdp.torch.PipelinedModule) -> str:
    """Tell where each module lies, the times and bytes that decided it, and what is to be expected."""
    trace, partition = pipe.split.trace, pipe.split.partition
    lines = [f"{'module':<24}{'stage':>6}{'rank':>6}{'forward':>12}{'backward':>12}{'parameters':>14}"]
    for index, stage in enumerate(partition.stages):
        for unit in (trace.units[number] for number in stage.units):
            backward = unit.backward_input + unit.backward_weight
            lines.append(
                f"{unit.name:<24}{index:>6}{stage.rank:>6}{unit.forward * 1e3:>9.2f} ms"
                f"{backward * 1e3:>9.2f} ms{unit.parameter_bytes / MIB:>10.2f} MiB"
            )
    for index, stage in enumerate(partition.stages):
        lines.append(
            f"stage {index}: {stage.seconds * 1e3:.2f} ms per microbatch, parameters"
            f" {stage.parameter_bytes / MIB:.2f} MiB, sends {stage.cut_bytes / MIB:.2f} MiB"
        )
    lines.append(f"predicted: step {partition.step * 1e3:.1f} ms, bubble {partition.bubble:.1%}")
    return "\n".join(lines)


def digests(pipe: smdp.torch.PipelinedModule, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Give a digest of each parameter and of the optimizer's state for it, over the bits of all ranks."""
    names = {parameter: name for name, parameter in pipe.named_parameters()}
    own = {}
    for group in optimizer.param_groups:
        settings = sorted((key, value) for key, value in group.items() if key != "params")
        for parameter in group["params"]:
            bits = hashlib.sha256(repr(settings).encode())
            for tensor in (parameter, *(value for _, value in sorted(optimizer.state[parameter].items()))):
                bits.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
            own[names[parameter]] = bits.hexdigest()
    ranks: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    found: dict[str, str] = {}
    for each in ranks:
        for name, digest in each.items():  # tied weights lie on several ranks
            if found.setdefault(name, digest) != digest:
                sys.exit(f"{name} differs between ranks")
    return found


def resume(folder: Path, pipe: smdp.torch.PipelinedModule, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint, prove that it is what was saved, and give the number of steps done."""
    checkpoint.load(folder, pipe, optimizer)
    saved = json.loads((folder / "digests.json").read_text())
    loaded = digests(pipe, optimizer)
    for name in sorted(saved["digests"].keys() | loaded.keys()):
        is_same = saved["digests"].get(name) == loaded.get(name)
        say(f"{name:<36} {loaded.get(name, 'missing')[:16]} {'as saved' if is_same else 'DIFFERS'}")
    if saved["digests"] != loaded:
        sys.exit("what was loaded is not what was saved")
    say(f"{len(loaded)} parameters and their optimizer state are as saved, bit for bit")
    return int(saved["step"])


if __name__ == "__main__":
    main()
