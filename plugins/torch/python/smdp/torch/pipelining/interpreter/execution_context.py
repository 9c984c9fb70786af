"""What runs a microbatch, as its interpreter sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.units.unit_call import Unit
from smdp.torch.pipelining.units.wording import Wording


class ExecutionContext(Protocol):
    """What the interpreter asks of the microbatch that it runs.

    Attributes:
        own: This rank's virtual stages.
        postpones: Weight gradients are apart, so that stages compute in contexts of their own.
        wording: Of the API that the user wrote.
    """

    own: frozenset[int]
    postpones: bool
    wording: Wording

    def enter(self, stage: int) -> None:
        """Wait until one of this rank's stages may run."""

    def computing(self, stage: int) -> AbstractContextManager[None]:
        """Give the context in which a stage of this rank computes."""

    def export(self, value: Value, tensor: Tensor) -> None:
        """Keep a value of this rank that other stages use, or that they may turn out to use."""

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        """Keep a value that the host reads, and of which the model may return a placeholder."""

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        """Send a value that the recording has just found to be used by another rank's stage."""

    def bring(self, value: Value, stage: int) -> Tensor:
        """Give a value of another stage for use in this one: a leaf, whose gradient goes back."""

    def fetch(self, value: Value, tensor: Tensor) -> Tensor:
        """Give the contents of a value on every rank."""

    def watch(self) -> None:
        """Note what attributes hold: if this rank has no part in what follows, it ends the forward here."""

    def describe(self, unit: Unit, stage: int, result: Any) -> Any:
        """Tell all ranks what a unit gives whose result is unpredictable; `result` is None on others."""
