"""A model that is not cut: replicas of it on all ranks, or one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel


class SinglePartition:
    """Runs microbatches one after the other; gradients are averaged with the last one's.

    Args:
        model: The whole model.
        group: Of its replicas; None: there is one.
        passes_per_step: Calls of steps between two averages over replicas.
        is_mean: Gradients are means over microbatches, not sums.
        options: Of DistributedDataParallel.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Any,
        *,
        passes_per_step: int,
        is_mean: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.model = model
        self.replicas: DistributedDataParallel | None = None
        if group is not None and any(parameter.requires_grad for parameter in model.parameters()):
            self.replicas = DistributedDataParallel(model, process_group=group, **options)
        self._passes_per_step = passes_per_step
        self._is_mean = is_mean
        self._passes = 0
        self._has_backward = False
        self._divisor = 1
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if passes_per_step > 1 and trained:
            register_multi_grad_hook(trained, self._note_backward, mode="any")

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model's forward."""
        return (self.replicas or self.model)(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Run the backward of a loss."""
        (loss / self._divisor).backward()

    def run_step(
        self, program: Callable[[Any], Any], parts: Sequence[Any], *, is_training: bool
    ) -> list[Any]:
        """Run the program for each microbatch."""
        is_last_pass = (self._passes + 1) % self._passes_per_step == 0
        self._has_backward = False
        results = []
        self._divisor = len(parts) if self._is_mean else 1
        try:
            for index, part in enumerate(parts):
                with self._accumulating(is_last_pass and index == len(parts) - 1):
                    results.append(program(part))
        finally:
            self._divisor = 1
            # Evaluation is none, also where gradients are on.
            self._passes += self._has_backward
        return results

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Give all parameters."""
        yield from self.model.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Give all buffers."""
        yield from self.model.named_buffers()

    def local_state_dict(self) -> dict[str, Any]:
        """Give the state dict."""
        return dict(self.model.state_dict())

    def state_dict(self, *, to_first_only: bool) -> dict[str, Any]:
        """Give the state dict; the rank is the only one of its model."""
        return self.local_state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool) -> Any:
        """Copy values into the model."""
        return self.model.load_state_dict(state_dict, strict=strict)

    def partition_of(self, name: str) -> int:
        """Give the partition of a module."""
        return 0

    @property
    def decision(self) -> dict[str, int]:
        """Where units lie; there are none."""
        return {}

    @property
    def rank_of(self) -> list[int]:
        """Partition of each virtual stage; there are none."""
        return []

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _note_backward(self, gradient: Tensor) -> None:
        self._has_backward = True

    def _accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if self.replicas is None or is_last:
            return contextlib.nullcontext()
        accumulating: contextlib.AbstractContextManager[None] = self.replicas.no_sync()
        return accumulating
