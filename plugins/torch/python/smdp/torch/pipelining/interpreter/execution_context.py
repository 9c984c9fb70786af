"""The interface between an interpreter and the microbatch that it runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.units.unit_call import Unit
from smdp.torch.pipelining.units.wording import Wording


class ExecutionContext(Protocol):
    """Services of the microbatch that an interpreter runs.

    Attributes:
        own: The virtual stages of this rank.
        postpones: Whether weight gradients are computed separately, so that stages compute in their own
            contexts.
        wording: Names of the API that the user called, for messages.
    """

    own: frozenset[int]
    postpones: bool
    wording: Wording

    def enter(self, stage: int) -> None:
        """Waits until one of this rank's stages may run."""

    def computing(self, stage: int) -> AbstractContextManager[None]:
        """Returns the context in which a stage of this rank computes."""

    def saving(self, stage: int) -> AbstractContextManager[None]:
        """Returns the context in which autograd saves the tensors of a stage of this rank."""

    def export(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value of this rank that other stages use or may use."""

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value that the host reads, if the model may return a placeholder for it."""

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        """Sends a value which the recording has just found that another rank's stage uses."""

    def bring(self, value: Value, stage: int) -> Tensor:
        """Returns a value of another stage for use in this one, as a leaf whose gradient is sent back."""

    def fetch(self, value: Value, tensor: Tensor) -> Tensor:
        """Returns the contents of a value on every rank."""

    def watch(self) -> None:
        """Records attributes of modules, as the forward ends here if this rank has no more work in it."""

    def describe(self, unit: Unit, stage: int, result: Any) -> Any:
        """Returns a unit's unpredictable result on all ranks; `result` is None on ranks that lack it."""
