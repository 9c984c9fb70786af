"""`smp.nn.DistributedModule`: the base class of modules that are divided over a tensor-parallel group."""

from __future__ import annotations

from typing import Any

from smdp.torch.mesh.averages import mark_average
from smdp.torch.mesh.slices import Slices, even
from smdp.torch.model_parallel.job.state import state
from smdp.torch.tensor_parallelism.layers.divided import Divided, cut_parameter


class DistributedModule(Divided):
    """Base class of modules of which each rank of a tensor-parallel group holds a slice.

    `smp.tp_register` accepts subclasses of it as substitutes.

    Raises:
        ValueError: smp.init() has not been called.
    """

    # Pipelines must not run the forward between stages, because its collectives need the ranks of one stage.
    is_whole_unit = True

    def __init__(self) -> None:
        super().__init__()
        self.tensor_axis = state.running.axis

    def keep_slice(self, name: str, dim: int) -> None:
        """Keeps this rank's slice of one of the module's parameters, which all ranks have whole.

        Args:
            name: The parameter's name.
            dim: The dimension that is divided. Its size is a multiple of the number of ranks.
        """
        parameter = self._parameters.get(name)
        if parameter is None or self.tensor_axis.size == 1:
            return
        axis, shape = self.tensor_axis, tuple(parameter.shape)
        cut_parameter(parameter, Slices(dim, (even(shape[dim], axis.rank, axis.size),), shape), axis)

    def keep_whole(self, name: str) -> None:
        """Marks a parameter that all ranks hold, and that sees the samples of all ranks of the group."""
        parameter = self._parameters.get(name)
        if parameter is not None and self.tensor_axis.size > 1:
            mark_average(parameter, "rdp")


def check_divisible(what: str, size: Any, ranks: int) -> None:
    """Checks that a size is a multiple of the number of ranks.

    Raises:
        ValueError: It is not.
    """
    if size % ranks != 0:
        raise ValueError(
            f"[smdp] {what} = {size} is not divisible by tensor_parallel_degree = {ranks}; choose a multiple"
        )
