"""One rank of `smdp bench ddp`: python -m smdp.torch.benchmark '<request as JSON>'.

This simulates training a transformer on an accelerator that does not use the CPU. The computation of each
layer is a sleep, and its gradients appear after the sleep of its backward, last layer first. The contenders
take turns. In each round, each of them runs one step to warm up and then the measured steps. A result is the
median over the rounds of the slowest rank's time per step. The optimizer only checks the means.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

_GLOO = "gloo"
_ALONE = "alone"  # the model without communication, the lower bound of a step's time
_IN_FORWARD = " in forward"  # the suffix of contenders whose optimizer steps in the next forward


def main(request: dict[str, Any]) -> None:
    """Runs the requested measurement. Rank 0 prints the results."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import smdp.torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def wrap(module: torch.nn.Module, name: str) -> torch.nn.Module:
        if name == _ALONE:
            return module
        if name == _GLOO:
            return DistributedDataParallel(module, process_group=dist.new_group(backend="gloo"))
        return smdp.torch.DistributedDataParallel(module, compression=name.removesuffix(_IN_FORWARD))

    trainings = {
        name: _Training(functools.partial(wrap, name=name), request, name)
        for name in [_ALONE, *request["contenders"]]
    }
    times: dict[str, list[float]] = {name: [] for name in trainings}
    steps = request["steps"]
    for _ in range(request["rounds"]):
        for name, training in trainings.items():
            training.run(1)
            dist.barrier()
            start = time.perf_counter()
            training.run(steps)
            taken = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            times[name].append(taken.item() / steps)
    if rank == 0:
        _report({name: statistics.median(values) for name, values in times.items()}, request, ranks)
        if request["explain"]:
            for name, training in trainings.items():
                if name not in (_ALONE, _GLOO):
                    print(f"# {name}: {training.model.explain()}")
    dist.barrier()
    dist.destroy_process_group()


class _Training:
    """The training of a model whose layers sleep."""

    def __init__(self, wrap: Callable[[Any], Any], request: dict[str, Any], name: str) -> None:
        import torch

        import smdp.torch

        forward_s, backward_s = request["forward_ms"] / 1e3, request["backward_ms"] / 1e3

        class Sleep(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
                time.sleep(forward_s)
                context.shapes = [parameter.shape for parameter in parameters]
                return x.clone()

            @staticmethod
            def backward(context: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
                time.sleep(backward_s)
                return grads[0], *(torch.ones(shape) for shape in context.shapes)

        class Layer(torch.nn.Module):
            def __init__(self, counts: list[int]) -> None:
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.zeros(count) for count in counts)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return Sleep.apply(x, *self.weights)

        self.model = wrap(torch.nn.Sequential(*(Layer(counts) for counts in request["layers"])))

        class Check(torch.optim.Optimizer):
            # All gradients are ones on all ranks, but top-k sends only a few of them.
            def step(self, closure: Any = None) -> None:
                for parameter in self.param_groups[0]["params"]:
                    grad = parameter.grad
                    if grad is None or (name[:4] != "topk" and abs(grad.flatten()[0].item() - 1) > 1e-2):
                        raise RuntimeError(f"[smdp] a mean of gradients is wrong, it must be ones: {grad}")

        self._optimizer = Check(self.model.parameters(), {})
        self._settle: Callable[[], None] = lambda: None
        if name.endswith(_IN_FORWARD):
            self._settle = smdp.torch.StepInForward(self.model, self._optimizer).settle
        self._input = torch.ones(1, requires_grad=True)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self.model(self._input).sum().backward()
            self._optimizer.step()
        self._settle()


def _report(seconds: dict[str, float], request: dict[str, Any], ranks: int) -> None:
    compute = seconds.pop(_ALONE)
    elements = sum(sum(counts) for counts in request["layers"])
    base = seconds.get(_GLOO)
    if request["json"]:
        print(json.dumps({"ranks": ranks, "bytes": 4 * elements, "compute_s": compute, "seconds": seconds}))
        return
    print(f"# {ranks} ranks, {4 * elements / 1e6:.1f} MB of gradients, {compute:.3f} s of compute in a step")
    print(f"# {'contender':>12} {'step (s)':>10} {'exposed (s)':>12} {'against gloo':>13}")
    for name, value in seconds.items():
        ratio = f"{base / value:12.2f}x" if base else ""
        print(f"  {name:>12} {value:10.3f} {value - compute:12.3f} {ratio:>13}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
