"""A model that is not cut: one replica on each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.modules.averages_by_class import AveragesByClass, averaged_by_class
from smdp.torch.model_parallel.modules.one_loss import scaled
from smdp.torch.model_parallel.modules.slices_of_state import joined_state


class SinglePartition:
    """Runs microbatches one after the other, and averages gradients over replicas in the last one.

    Args:
        model: The whole model.
        mesh: The ranks and groups. None: there is only one replica.
        passes_per_step: Number of steps between two averages over replicas.
        is_mean: Whether gradients are means over microbatches instead of sums.
        options: Options of DistributedDataParallel.
        is_sharded: Whether replicas share the state of the optimizer.

    Attributes:
        averaging: The `AveragingModel` of all gradients; None if nothing averages them.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: ParallelMesh | None,
        *,
        passes_per_step: int,
        is_mean: bool,
        options: Mapping[str, Any],
        is_sharded: bool = False,
    ) -> None:
        self.model = model
        self._mesh = mesh
        self.averaging: Any = None
        self._averages: list[Any] = []
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        if mesh is not None and len(mesh.ranks("tp")) > 1:
            by_class = averaged_by_class(model, mesh, options, takes_all=is_sharded)
            self._averages = list(by_class.values())
            self.averaging = AveragesByClass(by_class, mesh) if by_class else None
        elif mesh is not None and len(mesh.ranks("dp")) > 1 and is_trained:
            self.averaging = DistributedDataParallel(model, process_group=mesh.group("dp"), **options)
            self._averages = [self.averaging]
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
        return (self._averages[-1] if self._averages else self.model)(*args, **kwargs)

    @property
    def replicas(self) -> Any:
        """The DistributedDataParallel of all gradients; None if there are none or several."""
        return self._averages[0] if len(self._averages) == 1 else None

    @property
    def is_between(self) -> bool:
        """Whether the last step has left gradients that replicas have not averaged yet."""
        return self._passes % self._passes_per_step != 0

    def backward(self, loss: Tensor) -> None:
        """Runs the backward of a loss."""
        scaled(loss / self._divisor).backward()

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
        """Returns the state dict of the whole model, with the slices of the tensor-parallel group joined.

        All ranks of the group must call this.

        Args:
            to_first_only: Whether only the first rank of the group gets the entries.
        """
        found = self.local_state_dict()
        if self._mesh is None or len(self._mesh.ranks("tp")) == 1:
            return found
        return joined_state(found, self.model, self._mesh, to_first_only=to_first_only)

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

    def _note_backward(self, gradient: Tensor | None = None) -> None:
        self._has_backward = True

    def _accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        accumulating = contextlib.ExitStack()
        for each in () if is_last else self._averages:
            accumulating.enter_context(each.no_sync())
        return accumulating
