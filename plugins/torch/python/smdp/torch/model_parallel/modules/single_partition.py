"""A model that is not cut: one replica on each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel


class SinglePartition:
    """Runs microbatches one after the other, and averages gradients over replicas in the last one.

    Args:
        model: The whole model.
        group: The ranks of its replicas. None: there is only one replica.
        passes_per_step: Number of steps between two averages over replicas.
        is_mean: Whether gradients are means over microbatches instead of sums.
        options: Options of DistributedDataParallel.
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
        """Runs the model's forward."""
        return (self.replicas or self.model)(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Runs the backward of a loss."""
        (loss / self._divisor).backward()

    def run_step(
        self, program: Callable[[Any], Any], parts: Sequence[Any], *, is_training: bool
    ) -> list[Any]:
        """Runs the program for each microbatch."""
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
            # A step without a backward, such as an evaluation with gradients enabled, does not count.
            self._passes += self._has_backward
        return results

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields all parameters with their names."""
        yield from self.model.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all buffers with their names."""
        yield from self.model.named_buffers()

    def local_state_dict(self) -> dict[str, Any]:
        """Returns the state dict."""
        return dict(self.model.state_dict())

    def state_dict(self, *, to_first_only: bool) -> dict[str, Any]:
        """Returns the state dict; this rank is the only one of its model."""
        return self.local_state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool) -> Any:
        """Copies values into the model."""
        return self.model.load_state_dict(state_dict, strict=strict)

    def partition_of(self, name: str) -> int:
        """Returns the partition of a module, which is always 0."""
        return 0

    @property
    def decision(self) -> dict[str, int]:
        """The virtual stages of units; empty, because the model is not cut."""
        return {}

    @property
    def rank_of(self) -> list[int]:
        """The partition of each virtual stage; empty, because the model is not cut."""
        return []

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _note_backward(self, gradient: Tensor) -> None:
        self._has_backward = True

    def _accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if self.replicas is None or is_last:
            return contextlib.nullcontext()
        accumulating: contextlib.AbstractContextManager[None] = self.replicas.no_sync()
        return accumulating
