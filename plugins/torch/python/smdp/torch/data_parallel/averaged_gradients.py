"""Protocols of a model that averages gradients, as an optimizer that shards its state sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from torch import nn
from torch.nn import Parameter

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.registered_parameters import Registered


class AveragedGradients(Protocol):
    """The gradients that a model averages over ranks, in one list or several.

    Attributes:
        parameters: The parameters, by index. An index counts through all lists.
        registered: Name, dtype and element count of each.
        counts: The number of parameters in each list.
        groups: The ranks that average each list.
        hooks: What hands over each list during backward; empty if nothing does.
        called: The module whose forward begins a step; None if there is no such module.
        which: Tells users which parameters these are.
    """

    parameters: list[Parameter]
    registered: list[Registered]
    counts: list[int]
    groups: list[ProcessGroupSmdp]
    hooks: list[GradientHooks]
    called: nn.Module | None
    which: str

    @property
    def shards(self) -> Shards | None:
        """The object that owns pieces of the means, or None if every rank has all means."""

    @shards.setter
    def shards(self, shards: Shards) -> None: ...

    def shard(self, scope: str, whole: Collection[int]) -> list[_core.GradientReducer]:
        """Averages in such a way that means are owned in shards from now on. Collective.

        Args:
            scope: "world" or "host".
            whole: Indices of the parameters that must not be cut.

        Returns:
            The reducer of each list.
        """


class AveragingModel(Protocol):
    """A model whose gradients are averaged over ranks.

    Attributes:
        module: The model itself, with the names of all parameters.
    """

    module: Any

    @property
    def process_group(self) -> ProcessGroupSmdp | Any:
        """The ranks that hold the same slices of the same parameters."""

    @property
    def stage_group(self) -> ProcessGroupSmdp | Any:
        """The ranks that average any of the gradients together, which may have other slices."""

    def averaged_gradients(self, feature: str, trained: Collection[Parameter]) -> AveragedGradients:
        """Returns the gradients that are averaged.

        Args:
            feature: The name of the feature that takes them over, for messages.
            trained: Parameters that must be among them, where the model has a choice.

        Raises:
            ValueError: The feature does not work with this model.
        """
