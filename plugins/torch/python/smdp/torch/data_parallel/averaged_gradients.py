"""Protocols of a model that averages gradients, as an optimizer that shards its state sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from torch.nn import Parameter

from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.registered_parameters import Registered


class ShardedBuffer(Protocol):
    """A fusion buffer of which each rank owns a part; see `_core.ShardedBuffer`."""

    @property
    def count(self) -> int:
        """The number of elements."""

    @property
    def is_alone(self) -> bool:
        """Whether it is one large gradient, summed in its own memory."""

    @property
    def members(self) -> list[tuple[int, int, int]]:
        """Index of each gradient, its offset, and its number of elements."""

    @property
    def owned(self) -> list[tuple[int, int]]:
        """First element and end of each range that this rank owns."""


class ParameterGather(Protocol):
    """Parameters on their way from the owners of shards to all ranks; see `_core.ParameterGather`."""

    def ready(self, number: int) -> None:
        """Lets a buffer travel."""

    def wait_for(self, number: int) -> None:
        """Waits for a buffer."""

    def wait(self) -> None:
        """Waits for all buffers."""

    def is_there(self, number: int) -> bool:
        """Returns whether a buffer is complete."""


class ShardedReducer(Protocol):
    """One or several of the core's gradient reducers whose means are owned in shards."""

    @property
    def sharded_buffers(self) -> Sequence[ShardedBuffer]:
        """The fusion buffers."""

    @property
    def steps(self) -> int:
        """The number of means that were computed."""

    def means(self, number: int) -> int:
        """Returns the address of a buffer's means, valid until the next step."""

    def has_means(self, number: int) -> bool:
        """Returns whether a buffer's means have arrived."""

    def wait_for(self, index: int) -> None:
        """Waits for the mean of a gradient."""

    def wait(self) -> None:
        """Waits for all means, which ends the step."""

    def abort(self, reason: str) -> None:
        """Ends the operations of all ranks with this reason."""

    def gather(self, data: Sequence[int], is_once_per_host: bool = False) -> ParameterGather:
        """Begins to send what each rank owns of `data`, by buffer the address of its memory.

        Args:
            data: The addresses.
            is_once_per_host: Whether the ranks of a host have the same memory.
        """


class AveragedGradients(Protocol):
    """The gradients that a model averages over ranks.

    Attributes:
        parameters: The parameters, by index.
        registered: Name, dtype and element count of each.
        which: Tells users which parameters these are.
        shards: The object that owns pieces of the means, or None if every rank has all means.
    """

    parameters: list[Parameter]
    registered: list[Registered]
    which: str
    shards: Shards | None

    def shard(self, scope: str, whole: Collection[int]) -> ShardedReducer:
        """Averages in such a way that means are owned in shards from now on. Collective.

        Args:
            scope: "world" or "host".
            whole: Indices of the parameters that must not be cut.
        """


class AveragingModel(Protocol):
    """A model whose gradients are averaged over ranks that hold the same parameters.

    Attributes:
        module: The model itself, with the names of all parameters.
    """

    module: Any

    @property
    def process_group(self) -> ProcessGroupSmdp | Any:
        """The ranks that hold the same parameters."""

    def averaged_gradients(self, feature: str, trained: Collection[Parameter]) -> AveragedGradients:
        """Returns the gradients that are averaged.

        Args:
            feature: The name of the feature that takes them over, for messages.
            trained: Parameters that must be among them, where the model has a choice.

        Raises:
            ValueError: The feature does not work with this model.
        """
