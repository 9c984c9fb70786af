"""The part of a model on this rank, with the names of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.partitions import Partitions
from smdp.torch.model_parallel.modules.sharded_partition import ShardedPartition
from smdp.torch.model_parallel.modules.single_partition import SinglePartition


class LocalPart(nn.Module):
    """The iterators of a DistributedModel, and the partitions of its modules."""

    _model: nn.Module
    _body: SinglePartition | Partitions | None

    @property
    def partitioned(self) -> bool:
        """Whether the model has been cut."""
        return self._body is not None

    @property
    def pipe(self) -> Any:
        """The PipelinedModule of several partitions; None before the first step, or with one partition."""
        return self._body.pipe if isinstance(self._body, Partitions) else None

    @property
    def shards(self) -> Any:
        """The ShardedDataParallel of sharded data parallelism, otherwise None."""
        return self._body.shards if isinstance(self._body, ShardedPartition) else None

    @property
    def averaging(self) -> Any:
        """What averages the gradients over replicas; None before the model is cut, or with one replica."""
        if self._body is None or len(state.running.mesh.ranks("dp")) == 1:
            return None
        return self._body.pipe if isinstance(self._body, Partitions) else self._body.averaging

    @property
    def partition_decision(self) -> dict[str, int] | None:
        """The virtual stage of each unit, for fix_partition(); None before the model has been cut."""
        return None if self._body is None else self._body.decision

    @property
    def partition_ranks(self) -> list[int] | None:
        """The partition of each virtual stage, for fix_partition(); None before the model has been cut."""
        return None if self._body is None else self._body.rank_of

    @property
    def partition(self) -> dict[str, int] | None:
        """The partition of every module, by name; None before the model has been cut."""
        if self._body is None:
            return None
        return {name: self._body.partition_of(name) for name, _ in self._model.named_modules()}

    def get_module_partition(self, module: str | nn.Module) -> int:
        """Returns the partition of a module.

        Args:
            module: The module or its name.

        Raises:
            ValueError: The model has not been cut yet, or has no such module.
        """
        names = {name for name, each in self._model.named_modules() if each is module or name == module}
        if self._body is None or not names:
            why = "the model is cut at the first step" if names else f"it has no module {module!r}"
            raise ValueError(f"[smdp] this module has no partition: {why}")
        return self._body.partition_of(names.pop())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields this rank's parameters with their names; before the model is cut, all parameters."""
        found = self._model.named_parameters() if self._body is None else self._body.named_parameters()
        for name, parameter in found:
            yield (f"{prefix}.{name}" if prefix else name), parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields this rank's buffers with their names; before the model is cut, all buffers."""
        found = self._model.named_buffers() if self._body is None else self._body.named_buffers()
        for name, buffer in found:
            yield (f"{prefix}.{name}" if prefix else name), buffer

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yields the modules of the whole model."""
        yield from self._model.named_modules(memo, prefix, remove_duplicate)

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns this rank's parameters with their names."""
        return self.named_parameters()

    def virtual_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields what the optimizer updates on this rank.

        With `shard_optimizer_state`, these are one-dimensional views of this rank's part of the parameters,
        from the first step on. Further views of a parameter have names that end with a number in brackets.
        """
        optimizer = state.optimizer
        if optimizer is not None and optimizer.redefined_params:
            yield from optimizer.virtual_named_parameters()
        else:
            yield from self.named_parameters()

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Yields this rank's parameters."""
        yield from self.parameters()

    def local_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Returns this rank's buffers with their names."""
        return self.named_buffers()

    def local_buffers(self) -> Iterator[Tensor]:
        """Yields this rank's buffers."""
        yield from self.buffers()

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yields this rank's modules with their names; before the model is cut, all modules."""
        place = state.running.mesh.stage_rank
        for name, module in self._model.named_modules():
            if self._body is None or self._body.partition_of(name) == place:
                yield name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """Yields the modules on this rank's partition."""
        for _, module in self.local_named_modules():
            yield module
