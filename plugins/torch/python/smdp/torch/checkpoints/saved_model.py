"""What a checkpoint needs to know of a model: its entries, and which of them this rank saves and holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.state_dicts.state_entries import Entry


class SavedModel(Protocol):
    """A model in stages, or the same model on all ranks."""

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

    def load_others(self, values: Mapping[str, Any]) -> None:
        """Loads the entries that are not tensors."""


def saved_model(model: nn.Module) -> SavedModel:
    """Returns what a checkpoint needs to know of a model.

    Raises:
        TypeError: The model is neither split into stages nor data parallel.
    """
    if isinstance(model, PipelinedModule):
        return _StagedModel(model)
    if isinstance(model, DistributedDataParallel):
        return _ReplicatedModel(model)
    raise TypeError(
        f"[smdp] a checkpoint is saved from and loaded into a model that smdp.torch.pipeline() returned, or"
        f" that is wrapped in DistributedDataParallel, but got a {type(model).__name__}. In a single process,"
        " use torch.distributed.checkpoint."
    )


class _StagedModel:
    def __init__(self, pipe: PipelinedModule) -> None:
        self._pipe = pipe
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
        return self._pipe.saves(entry, any_replica=is_sharded)

    def load_others(self, values: Mapping[str, Any]) -> None:
        self._pipe.load_state_dict(values, strict=False)


class _ReplicatedModel:
    """All ranks have the whole model; parameters are the same everywhere, and other entries may differ."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._module = model.module
        self._ignored = set(model.parameters_to_ignore)
        self.group = model.process_group
        self.steps: int | None = None
        self.named_parameters = model.module.named_parameters

    def entries(self) -> dict[str, Entry]:
        first_names: dict[int, str] = {}
        found = {}
        for name, value in self._module.state_dict(keep_vars=True).items():
            first_name = first_names.setdefault(id(value), name) if isinstance(value, Tensor) else name
            found[name] = Entry(value, frozenset({0}), 0, first_name)
        return found

    def holds(self, entry: Entry) -> bool:
        return True

    def saves(self, entry: Entry, *, is_sharded: bool = False) -> bool:
        is_same = isinstance(entry.value, Parameter) and entry.first_name not in self._ignored
        return is_sharded or is_same or dist.get_rank(self.group) == 0

    def load_others(self, values: Mapping[str, Any]) -> None:
        self._module.load_state_dict(values, strict=False)
