"""Queries about modules distributed by tensor parallelism; there are none, because its degree is 1."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from smdp.torch.model_parallel.modules.local_part import LocalPart


class DistributedParts(LocalPart):
    """Answers queries about distributed modules, whose gradients SMP reduces in a separate group."""

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Returns the distributed modules."""
        return iter(())

    def is_distributed_parameter(self, parameter: nn.Parameter) -> bool:
        """Returns whether ranks hold slices of a parameter."""
        return False

    def is_distributed_buffer(self, buffer: Tensor) -> bool:
        """Returns whether ranks hold slices of a buffer."""
        return False

    def is_scaled_batch_parameter(self, parameter: nn.Parameter) -> bool:
        """Returns whether a parameter processes the batches of all tensor-parallel ranks."""
        return False

    def is_scaled_batch_buffer(self, buffer: Tensor) -> bool:
        """Returns whether a buffer processes the batches of all tensor-parallel ranks."""
        return False

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns the parameters whose gradients are averaged over DP_GROUP, which are all of this rank's."""
        return self.local_named_parameters()

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns the parameters whose gradients are averaged over RDP_GROUP."""
        return iter(())
