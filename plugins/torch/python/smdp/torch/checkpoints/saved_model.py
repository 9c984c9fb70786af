"""What a checkpoint needs to know of a model: its entries, and which of them this rank saves and holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from smdp.torch.mesh.cuts import cut_of, mesh_of_slices
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.state_dicts.state_entries import Entry
from smdp.torch.sharded_parameters.sharded_data_parallel import ShardedDataParallel


class SavedModel(Protocol):
    """A model in stages, in slices or in shards, or the same model on all ranks.

    Attributes:
        mesh: The ranks of stages, slices and replicas, or None for the same model on all ranks.
        shard: This rank's position among those that hold shards of the same values, and their number.
    """

    mesh: ParallelMesh | None
    shard: tuple[int, int]

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that save and load together. None: all ranks of the job."""

    @property
    def steps(self) -> int | None:
        """The number of steps so far, if random numbers depend on it."""

    @steps.setter
    def steps(self, number: int) -> None: ...

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields this rank's parameters with their names."""

    def entries(self) -> dict[str, Entry]:
        """Returns all entries of the whole model's state dict."""

    def holds(self, entry: Entry) -> bool:
        """Returns whether this rank has the value of an entry."""

    def saves(self, entry: Entry, *, is_sharded: bool = False) -> bool:
        """Returns whether this rank may save an entry. torch saves it once if several ranks may.

        Args:
            entry: The entry.
            is_sharded: Whether what is saved is different on each replica.
        """

    def joins(self, entry: Entry) -> bool:
        """Returns whether this rank and those with its other slices save a whole entry together."""

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Loads this rank's values of some entries."""


def saved_model(model: nn.Module) -> SavedModel:
    """Returns what a checkpoint needs to know of a model.

    Raises:
        TypeError: The model is neither in stages, nor divided, nor data parallel.
    """
    if isinstance(model, PipelinedModule):
        return _StagedModel(model)
    if isinstance(model, DistributedDataParallel):
        divided = mesh_of_slices(model.module.parameters())
        ignored = set(model.parameters_to_ignore)
        if divided is not None:
            return _DividedModel(model.module, ignored, divided)
        return _ReplicatedModel(model.module, ignored, model.process_group)
    divided = mesh_of_slices(model.parameters())
    if isinstance(model, ShardedDataParallel):
        place = model.process_group.rank() % model.degree, model.degree
        if divided is not None:
            return _DividedModel(model.module, set(), divided, place)
        return _ShardedModel(model.module, model.process_group, place)
    if divided is not None:
        return _DividedModel(model, set(), divided)
    raise TypeError(
        "[smdp] a checkpoint is saved from and loaded into a model that smdp.torch.pipeline() or"
        " tensor_parallel() returned, or that is wrapped in DistributedDataParallel or ShardedDataParallel,"
        f" but got a {type(model).__name__}. In a single process, use torch.distributed.checkpoint."
    )


class _StagedModel:
    def __init__(self, pipe: PipelinedModule) -> None:
        self._pipe = pipe
        self.shard = (0, 1)
        self.mesh: ParallelMesh | None = pipe.mesh
        self.group = None
        self.named_parameters = pipe.named_parameters
        self.entries = pipe.entries
        self.holds = pipe.holds

    @property
    def steps(self) -> int | None:
        return self._pipe.steps

    @steps.setter
    def steps(self, number: int) -> None:
        self._pipe.steps = number

    def saves(self, entry: Entry, *, is_sharded: bool = False) -> bool:
        return self._pipe.saves(entry, any_replica=is_sharded) and _is_first(entry.value, self._pipe.mesh)

    def joins(self, entry: Entry) -> bool:
        return self._pipe.saves(entry)

    def load_values(self, values: Mapping[str, Any]) -> None:
        self._pipe.load_state_dict(values, strict=False)


class _UnstagedModel:
    """All ranks have all entries of a module, whole ones or slices."""

    def __init__(
        self,
        module: nn.Module,
        ignored: set[str],
        group: dist.ProcessGroup | None,
        mesh: ParallelMesh | None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._module = module
        self._ignored = ignored  # by DistributedDataParallel, so replicas may have different values
        self.group = group
        self.mesh = mesh
        self.shard = shard
        self.steps: int | None = None
        self.named_parameters = module.named_parameters

    def entries(self) -> dict[str, Entry]:
        first_names: dict[int, str] = {}
        found = {}
        for name, value in self._module.state_dict(keep_vars=True).items():
            first_name = first_names.setdefault(id(value), name) if isinstance(value, Tensor) else name
            found[name] = Entry(value, frozenset({0}), 0, first_name)
        return found

    def holds(self, entry: Entry) -> bool:
        return True

    def load_values(self, values: Mapping[str, Any]) -> None:
        self._module.load_state_dict(values, strict=False)

    def _is_same(self, entry: Entry) -> bool:
        """Returns whether all replicas have the same values. Their buffers, for example, may differ."""
        return isinstance(entry.value, Parameter) and entry.first_name not in self._ignored


class _ReplicatedModel(_UnstagedModel):
    def __init__(self, module: nn.Module, ignored: set[str], group: dist.ProcessGroup) -> None:
        super().__init__(module, ignored, group, None)

    def saves(self, entry: Entry, *, is_sharded: bool = False) -> bool:
        return is_sharded or self._is_same(entry) or self.joins(entry)

    def joins(self, entry: Entry) -> bool:
        return bool(dist.get_rank(self.group) == 0)


class _ShardedModel(_ReplicatedModel):
    def __init__(self, module: nn.Module, group: dist.ProcessGroup, shard: tuple[int, int]) -> None:
        super().__init__(module, set(), group)
        self.shard = shard

    def joins(self, entry: Entry) -> bool:
        return bool(dist.get_rank(self.group) < self.shard[1])  # the first replica


class _DividedModel(_UnstagedModel):
    """All ranks of the job save, because those with other slices are in other groups of replicas."""

    def __init__(
        self, module: nn.Module, ignored: set[str], mesh: ParallelMesh, shard: tuple[int, int] = (0, 1)
    ) -> None:
        super().__init__(module, ignored, None, mesh, shard)
        self._mesh = mesh

    def saves(self, entry: Entry, *, is_sharded: bool = False) -> bool:
        is_any_replica = is_sharded or self._is_same(entry) or self.joins(entry)
        return is_any_replica and _is_first(entry.value, self._mesh)

    def joins(self, entry: Entry) -> bool:
        return self._mesh.replica == 0


def _is_first(value: object, mesh: ParallelMesh) -> bool:
    """Returns whether no earlier rank along the tensor axis has the same value, or the same slice.

    The ranks along the axis may shard the optimizer's state differently, so two of them must not save it.
    """
    cut = cut_of(value) if isinstance(value, Tensor) else None
    if cut is None or cut.axis != "tp":
        return mesh.ranks("tp")[0] == mesh.rank
    # If only some ranges count, this rank saves these.
    return cut.is_counted is not False
