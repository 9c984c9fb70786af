"""What of a model lies on this rank, under the names that it has in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.partitions import Partitions
from smdp.torch.model_parallel.modules.single_partition import SinglePartition


class LocalPart(nn.Module):
    """The iterators of a DistributedModel, and where its modules lie."""

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
    def partition_decision(self) -> dict[str, int] | None:
        """Where what is never cut lies, for fix_partition(); None before the model has been cut."""
        return None if self._body is None else self._body.decision

    @property
    def partition_ranks(self) -> list[int] | None:
        """Partition of each virtual stage, for fix_partition(); None before the model has been cut."""
        return None if self._body is None else self._body.rank_of

    @property
    def partition(self) -> dict[str, int] | None:
        """Partition of every module, by name; None before the model has been cut."""
        if self._body is None:
            return None
        return {name: self._body.partition_of(name) for name, _ in self._model.named_modules()}

    def get_module_partition(self, module: str | nn.Module) -> int:
        """Give the partition of a module, or of its name.

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
        """Give this rank's parameters under their names in the model; before it is cut, all."""
        found = self._model.named_parameters() if self._body is None else self._body.named_parameters()
        for name, parameter in found:
            yield (f"{prefix}.{name}" if prefix else name), parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Give this rank's buffers under their names in the model; before it is cut, all."""
        found = self._model.named_buffers() if self._body is None else self._body.named_buffers()
        for name, buffer in found:
            yield (f"{prefix}.{name}" if prefix else name), buffer

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Give the model's modules."""
        yield from self._model.named_modules(memo, prefix, remove_duplicate)

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Give this rank's parameters, with names."""
        return self.named_parameters()

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Give this rank's parameters."""
        yield from self.parameters()

    def local_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Give this rank's buffers, with names."""
        return self.named_buffers()

    def local_buffers(self) -> Iterator[Tensor]:
        """Give this rank's buffers."""
        yield from self.buffers()

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Give the modules on this rank's partition, with names; before the model is cut, all."""
        place = state.running.mesh.stage_rank
        for name, module in self._model.named_modules():
            if self._body is None or self._body.partition_of(name) == place:
                yield name, module

    def local_modules(self) -> Iterator[nn.Module]:
        """Give the modules on this rank's partition."""
        for _, module in self.local_named_modules():
            yield module
