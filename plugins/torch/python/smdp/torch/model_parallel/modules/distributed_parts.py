"""Queries about modules distributed by tensor parallelism, and about their parameters."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.model_parallel.modules.local_part import LocalPart
from smdp.torch.model_parallel.modules.slice_averages import class_of
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule


class DistributedParts(LocalPart):
    """Answers queries about distributed modules, whose gradients are averaged in a separate group."""

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Yields the distributed modules."""
        for module in self._model.modules():
            if isinstance(module, DistributedModule):
                yield module

    def is_distributed_parameter(self, parameter: nn.Parameter) -> bool:
        """Returns whether ranks hold slices of a parameter."""
        return cut_of(parameter) is not None

    def is_distributed_buffer(self, buffer: Tensor) -> bool:
        """Returns whether ranks hold slices of a buffer; no buffer is divided."""
        return False

    def is_scaled_batch_parameter(self, parameter: nn.Parameter) -> bool:
        """Returns whether all ranks hold a parameter, which processes the batches of all of them."""
        return cut_of(parameter) is None and class_of(parameter) == "rdp"

    def is_scaled_batch_buffer(self, buffer: Tensor) -> bool:
        """Returns whether a buffer processes the batches of all tensor-parallel ranks; none does."""
        return False

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields this rank's parameters whose gradients are averaged over DP_GROUP."""
        for name, parameter in self.local_named_parameters():
            if class_of(parameter) == "dp":
                yield name, parameter

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields this rank's parameters whose gradients are averaged over RDP_GROUP."""
        for name, parameter in self.local_named_parameters():
            if class_of(parameter) == "rdp":
                yield name, parameter
