"""The ranks over which one model's layers are divided."""

from __future__ import annotations

import itertools
import weakref

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_numbers = itertools.count()
_axes: weakref.WeakValueDictionary[int, TensorAxis] = weakref.WeakValueDictionary()


class TensorAxis:
    """The tensor axis of a mesh, as the layers of one model see it.

    Operators of torch.library take numbers and no objects, so each axis has a number.

    Args:
        mesh: The mesh. Assign another one with the same tensor axis to use its groups.

    Attributes:
        mesh: The mesh.
        number: The number of this axis in this process.
    """

    def __init__(self, mesh: ParallelMesh) -> None:
        self.mesh = mesh
        self.number = next(_numbers)
        _axes[self.number] = self

    def __deepcopy__(self, memo: object) -> TensorAxis:
        """Returns the same axis, because a copy of a model is on the same ranks."""
        return self

    @property
    def size(self) -> int:
        """The number of ranks along the axis."""
        return self.mesh.placement.tensor

    @property
    def rank(self) -> int:
        """This rank's position along the axis."""
        return self.mesh.ranks("tp").index(self.mesh.rank)

    @property
    def is_across_hosts(self) -> bool:
        """Whether the ranks are on several hosts."""
        return self.size > 1 and len(self.group.core.hosts) > 1

    @property
    def group(self) -> ProcessGroupSmdp:
        """The group of these ranks for the communication of steps."""
        return self.mesh.step_group("tp")


def axis_of(number: int) -> TensorAxis:
    """Returns the axis with a number.

    Raises:
        RuntimeError: The model of this axis has been deleted.
    """
    found = _axes.get(number)
    if found is None:
        raise RuntimeError("[smdp] the model of this tensor-parallel operation has been deleted.")
    return found
