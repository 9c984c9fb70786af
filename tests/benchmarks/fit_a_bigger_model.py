"""The memory of two ranks that train a GPT-2 of 8 blocks, with one measure after another.

Both ranks run in one memory cgroup. Its most bytes are read at the end, less what two ranks hold that have
only imported their packages. With --limit, the kernel kills ranks that need more. It needs root.

    python tests/benchmarks/fit_a_bigger_model.py --disk /var/tmp
    python tests/benchmarks/fit_a_bigger_model.py --disk /var/tmp --limit 1200M
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANKS, BLOCKS, SEQUENCE, VOCABULARY, STEPS = 2, 8, 128, 2048, 4
IDLE = "imports only"
KINDS = (
    "data parallel",
    "shard_optimizer",
    "+ recompute",
    "+ bf16",
    "+ optimizer on disk",
    "+ activations on disk",
    "share_parameters, recompute",
    "ShardedDataParallel, recompute",
    "2 stages, recompute",
    "2 slices, recompute",
)


def gpt2(width: int) -> Any:
    """Returns a model that has seen no data, the same on all ranks."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": BLOCKS, "n_embd": width, "n_head": width // 64, "n_positions": SEQUENCE}
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, vocab_size=VOCABULARY, use_cache=False))


def train(kind: str, folder: Path, width: int, batch: int, disk: str) -> None:
    """Is one rank: trains some steps and writes the median of their seconds."""
    import torch
    import torch.distributed as dist

    import smdp.torch

    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    if kind == IDLE:
        import transformers.models.gpt2.modeling_gpt2

        assert transformers
        dist.barrier()
        dist.destroy_process_group()
        return
    model = gpt2(width)
    optimizer: Any
    measures = KINDS.index(kind)
    is_staged = kind.startswith("2 stages")
    if measures >= KINDS.index("+ recompute") and not is_staged:
        smdp.torch.checkpoint_activations(model)
    if kind.startswith("2 slices"):
        model = smdp.torch.tensor_parallel(model, 2)
        optimizer = torch.optim.AdamW(model.parameters())
    elif is_staged:
        example = {"input_ids": torch.zeros(batch, SEQUENCE, dtype=torch.long)}
        example["labels"] = example["input_ids"]
        model = smdp.torch.pipeline(model, 2, 4, example_inputs=example, recompute="each")
        optimizer = torch.optim.AdamW(model.parameters())
    elif kind.startswith("ShardedDataParallel"):
        model = smdp.torch.ShardedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
    elif kind.startswith("share_parameters"):
        model = smdp.torch.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer = smdp.torch.ShardedOptimizer(optimizer, model, share_parameters=True)
    else:
        is_low = measures >= KINDS.index("+ bf16")
        on_disk = f"disk:{disk}"
        if is_low:
            smdp.torch.lower_precision(model)
        if kind == "+ activations on disk":
            smdp.torch.offload_activations(model, on_disk, horizon=1)
        model = smdp.torch.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        if measures >= KINDS.index("shard_optimizer"):
            optimizer = smdp.torch.ShardedOptimizer(
                optimizer,
                model,
                master_dtype=torch.float32 if is_low else None,
                offload=on_disk if measures >= KINDS.index("+ optimizer on disk") else None,
            )
        if is_low:
            optimizer = smdp.torch.MixedPrecision(optimizer, model)
    # The ranks of stages and of slices work on one batch together.
    share = batch if is_staged or kind.startswith("2 slices") else batch // RANKS
    tokens = torch.randint(VOCABULARY, (share, SEQUENCE))
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        if is_staged:
            loss = model.train_step({"input_ids": tokens, "labels": tokens})
        else:
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    assert torch.isfinite(loss)
    if dist.get_rank() == 0:
        (folder / "seconds").write_text(str(statistics.median(seconds[1:])))
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def memory_group(limit: str | None) -> Iterator[Path]:
    """Creates a memory cgroup, of version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    is_first = (root / "memory").is_dir()
    group = root / ("memory" if is_first else "") / f"smdp-{os.getpid()}"
    group.mkdir()
    try:
        if limit is not None:
            (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(limit)
        yield group
    finally:
        time.sleep(0.5)  # the kernel lets go of the last process
        group.rmdir()


def most(kind: str, options: argparse.Namespace) -> tuple[int, float] | None:
    """Returns the most bytes that both ranks held and the seconds of a step, or None if they were killed."""
    with tempfile.TemporaryDirectory() as folder, memory_group(options.limit) as group:
        script = [__file__, "--kind", kind, "--folder", folder, "--disk", options.disk]
        script += ["--width", str(options.width), "--batch", str(options.batch)]
        inside = f'echo $$ > {group}/cgroup.procs; exec smdp run -n {RANKS} "$@"'
        ended = subprocess.run(["sh", "-c", inside, "sh", *script], capture_output=True, text=True)
        if ended.returncode:
            if options.limit is None:
                sys.exit(f"{kind}: {ended.stderr}{ended.stdout}")
            return None
        is_first = (group / "memory.max_usage_in_bytes").exists()
        peak = int((group / ("memory.max_usage_in_bytes" if is_first else "memory.peak")).read_text())
        timed = Path(folder, "seconds")
        return peak, float(timed.read_text()) if timed.exists() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", default="/var/tmp")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", help="of the cgroup, such as 1200M")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        train(options.kind, options.folder, options.width, options.batch, options.disk)
        return
    idle = most(IDLE, options)
    if idle is None:
        sys.exit("the limit is too small for ranks that do nothing")
    print(f"{IDLE:32} {idle[0] / 1e6:8.0f} MB")
    for kind in options.kinds:
        found = most(kind, options)
        if found is None:
            print(f"{kind:32}   killed", flush=True)
        else:
            print(f"{kind:32} {(found[0] - idle[0]) / 1e6:8.0f} MB {found[1]:8.2f} s", flush=True)


if __name__ == "__main__":
    main()
