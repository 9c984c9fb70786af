"""What a plugin of the Trainer can take over. Provisional: it may still change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainingArguments


class Plugin:
    """A part of `Trainer(..., plugins=[...])`. Every method may be left as it is.

    Plugins are asked in the order of the list; with several that wrap the model, the last is outermost.
    """

    def conflict(self, other: Plugin) -> str | None:
        """Say why this plugin cannot work with another one of the list; None: it can."""
        return None

    def set_up(self, args: TrainingArguments) -> None:
        """Make process groups, before the Trainer makes its Accelerator."""

    def wrap_model(
        self, trainer: Trainer, prepare: Callable[..., nn.Module], model: nn.Module, **options: Any
    ) -> nn.Module:
        """Wrap the model for training. `prepare(model, **options)` is what the Trainer would do."""
        return prepare(model, **options)

    def make_optimizer(self, trainer: Trainer, optimizer: Optimizer) -> Optimizer:
        """Give the optimizer to use in place of the Trainer's."""
        return optimizer

    def run_step(self, trainer: Trainer, run: Callable[[], Tensor]) -> Tensor:
        """Run forward and backward of one batch and give the loss; `run()` is what the Trainer would do."""
        return run()

    def save(self, trainer: Trainer, folder: str) -> None:
        """Add to a checkpoint; called on all ranks."""

    def load(self, trainer: Trainer, folder: str) -> None:
        """Read what save() has written; called on all ranks."""

    def report(self) -> dict[str, float]:
        """Give numbers for the Trainer's log, over the time since the last call."""
        return {}
