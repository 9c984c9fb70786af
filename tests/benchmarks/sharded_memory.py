"""The memory of four ranks on one host that train with and without a sharded optimizer, on CPUs.

It is the most that all ranks hold together at any moment of some steps, with shared memory counted once, less
what they hold when they have only imported torch.

    python tests/benchmarks/sharded_memory.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

KINDS = ("DDP", "sharded", "sharded, parameters shared", "ShardedDataParallel")
IDLE = "only torch"
_WARM, _STEPS = 2, 4


def proportional(pid: int) -> int:
    """Returns the bytes of a process, of which shared pages count by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no Pss of process {pid}")


def most(kind: str, ranks: int, options: list[str]) -> int:
    """Returns the most that the ranks hold together while they make the steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["smdp", "run", "-n", str(ranks), __file__, "--kind", kind, "--folder", folder, *options]
        with subprocess.Popen(command) as launcher:
            here = Path(folder)
            found = 0
            while launcher.poll() is None:
                pids = [int(file.name) for file in here.glob("[0-9]*")]
                if len(pids) < ranks or (here / "over").exists():
                    time.sleep(0.05)
                    continue
                try:
                    found = max(found, sum(map(proportional, pids)))
                except OSError:  # a rank has ended
                    continue
            if launcher.returncode or not found:
                raise SystemExit(f"{kind}: ranks failed")
            return found


def train(kind: str, folder: Path, width: int, blocks: int, batch: int) -> None:
    """Is one rank: makes itself known once it is warm, and trains."""
    import torch

    torch.set_num_threads(1)
    if kind == IDLE:
        (folder / str(os.getpid())).touch()
        time.sleep(3)
        return
    import torch.distributed as dist
    from torch import nn

    import smdp.torch

    dist.init_process_group("smdp")
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for _ in range(blocks)
    ]
    inner = nn.Sequential(*layers)
    del layers
    model: nn.Module
    if kind == KINDS[3]:
        model = smdp.torch.ShardedDataParallel(inner)
    else:
        model = smdp.torch.DistributedDataParallel(inner)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if kind == KINDS[1]:
        optimizer = smdp.torch.ShardedOptimizer(optimizer, model)
    elif kind == KINDS[2]:
        optimizer = smdp.torch.ShardedOptimizer(optimizer, model, share_parameters=True)
    data = torch.randn(batch, width)
    for step in range(_WARM + _STEPS):
        if step == _WARM:
            (folder / str(os.getpid())).touch()
            dist.barrier()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    dist.barrier()
    (folder / "over").touch()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--kind", choices=(*KINDS, IDLE), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        train(options.kind, options.folder, options.width, options.blocks, options.batch)
        return
    same = [f"--{name}={getattr(options, name)}" for name in ("width", "blocks", "batch")]
    idle = most(IDLE, options.ranks, same)
    print(f"{IDLE:28} {idle / 1e6:8.0f} MB")
    base = 0
    for kind in options.kinds:
        held = most(kind, options.ranks, same) - idle
        base = base or held
        print(f"{kind:28} {held / 1e6:8.0f} MB {held / base:7.1%}", flush=True)


if __name__ == "__main__":
    main()
