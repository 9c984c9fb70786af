"""A sharded optimizer beside data parallelism on hosts with slow links; sleeps replace the computation.

Hosts are network namespaces; needs root: python tests/benchmarks/sharded_replay.py --hosts 2 --ranks 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import smdp.torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from network import Cluster

ALONE, DDP = "without communication", "DDP"
KINDS: dict[str, dict[str, Any] | None] = {
    DDP: None,
    "ShardedOptimizer": {},
    "ShardedOptimizer, overlap_forward=False": {"overlap_forward": False},
}


class Sleep(torch.autograd.Function):
    """A layer that takes time, but no processor."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(seconds)
        context.seconds, context.shapes = seconds, [one.shape for one in parameters]
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        time.sleep(2 * context.seconds)
        return grad, None, *(torch.ones(shape) for shape in context.shapes)


class Layer(nn.Module):
    def __init__(self, seconds: float, width: int) -> None:
        super().__init__()
        self.seconds = seconds
        shapes = [(width, width), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(x, self.seconds, *self.weights)  # type: ignore[no-any-return]


class Training:
    """Steps of SGD, in which every mean is one."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        layers = (Layer(options.forward_ms / 1e3, options.width) for _ in range(options.layers))
        self.model: nn.Module = nn.Sequential(*layers)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        if name != ALONE:
            self.model = wrapped = smdp.torch.DistributedDataParallel(self.model)
            if (given := KINDS[name]) is not None:
                self.optimizer = smdp.torch.ShardedOptimizer(self.optimizer, wrapped, **given)
        self.steps = 0

    def run(self, steps: int) -> float:
        """Returns the seconds of a step: backward, update and the next forward."""
        loss = self.forward()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss = self.forward()
        seconds = (time.perf_counter() - begin) / steps
        if isinstance(self.optimizer, smdp.torch.ShardedOptimizer):
            self.optimizer.settle()
        self.steps += steps
        for parameter in self.model.parameters():
            assert parameter.min() == parameter.max() == -self.steps
        return seconds

    def forward(self) -> Tensor:
        loss: Tensor = self.model(torch.ones(1, requires_grad=True)).sum()
        return loss


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    trainings = {name: Training(name, options) for name in (ALONE, *KINDS)}
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for round_ in range(-1, options.rounds):
        for name, training in trainings.items():
            taken = training.run(options.steps)
            if round_ >= 0:
                seconds[name].append(taken)
    if dist.get_rank() == 0:
        medians = {name: 1e3 * statistics.median(found) for name, found in seconds.items()}
        size = sum(one.nbytes for one in trainings[DDP].model.parameters()) / 1e6
        print(f"{dist.get_world_size()} ranks, {size:.1f} MB of parameters, {options.rate}")
        for name, median in medians.items():
            exposed, reference = median - medians[ALONE], medians[DDP] - medians[ALONE]
            print(f"{name:40} {median:7.0f} ms, exposed {exposed:6.0f} ms  {exposed / reference:5.2f}")
    dist.destroy_process_group()


def start(options: argparse.Namespace) -> int:
    with Cluster(options.hosts, rate=options.rate) as cluster:
        ranks = options.hosts * options.ranks
        started = [
            cluster.start(
                rank // options.ranks,
                [sys.executable, *sys.argv, "--inside"],
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank % options.ranks),
                    "MASTER_ADDR": cluster.address(0),
                    "MASTER_PORT": "29511",
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(ranks)
        ]
        before = cluster.bytes_sent(0)
        outputs = [process.communicate(timeout=900)[0] for process in started]
        print(outputs[0], f"host 0 sent {(cluster.bytes_sent(0) - before) / 1e6:.0f} MB in all")
        return max(abs(process.returncode) for process in started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--rate", default="400mbit", help="of each host's link, as tc spells it")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--forward-ms", type=float, default=10, help="of a layer; its backward takes twice as long"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        return start(options)
    measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
