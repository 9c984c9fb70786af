"""The interface of the Trainer's plugins. It is provisional and may change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments


class Plugin:
    """Base class of the plugins in `Trainer(..., plugins=[...])`.

    A subclass overrides the methods that it needs. The Trainer calls plugins in the order of the list, but
    one that places the model comes first. If several plugins wrap the model or a step, the last one is
    outermost.

    Attributes:
        places_model: Whether the plugin decides where the model's parameters lie. The Trainer then does not
            move them.
        ranks_per_batch: The number of ranks that work on one batch together. The Trainer counts them as one.
        preemption: Whether the Trainer saves a checkpoint and exits with code 75 when a rank receives
            SIGTERM.
    """

    places_model = False
    ranks_per_batch = 1
    preemption = False

    @property
    def materializes_model(self) -> bool:
        """Whether the plugin allocates the parameters of a model that is on the meta device."""
        return False

    def conflict(self, other: Plugin) -> str | None:
        """Returns the reason why this plugin cannot work with another plugin of the list, or None."""
        return None

    def described(self) -> str:
        """Returns a text that must be the same on all ranks. If it differs, the Trainer raises an error."""
        return described_by(self, {})

    def set_up(self, args: TrainingArguments) -> None:
        """Checks arguments and creates process groups, before the Trainer creates its Accelerator."""

    def change_accelerator(self, trainer: Trainer) -> None:
        """Changes the behavior of the Trainer's Accelerator, which has just been created."""

    def place_model(self, trainer: Trainer, loader: DataLoader[Any] | None) -> None:
        """Moves the model to where it runs, before its first use and before the optimizer is created.

        It is called more than once.

        Args:
            trainer: The Trainer, which has the model.
            loader: A loader of the batches that the model will get, or None if the Trainer has none yet.
        """

    def wrap_model(
        self, trainer: Trainer, prepare: Callable[..., nn.Module], model: nn.Module, **options: Any
    ) -> nn.Module:
        """Returns the model wrapped for training. `prepare(model, **options)` wraps like the Trainer."""
        return prepare(model, **options)

    def wrap_optimizer(
        self, trainer: Trainer, prepare: Callable[..., Optimizer], optimizer: Optimizer, **options: Any
    ) -> Optimizer:
        """Returns the optimizer wrapped for training, after the model.

        `prepare(optimizer, **options)` wraps like the Trainer.
        """
        return prepare(optimizer, **options)

    def make_optimizer(self, trainer: Trainer, make: Callable[[], Optimizer]) -> Optimizer:
        """Returns the optimizer to use. `make()` returns the Trainer's or the user's optimizer."""
        return make()

    def run_step(
        self, trainer: Trainer, run: Callable[..., Tensor], model: nn.Module, inputs: Any, items: Any
    ) -> Tensor:
        """Runs forward and backward of one batch and returns the loss.

        Args:
            trainer: The Trainer.
            run: The Trainer's own step, called as `run(model, inputs, items)`.
            model: The wrapped model.
            inputs: The batch.
            items: The number of items, such as tokens, by which the losses of an optimizer step are divided,
                or None.
        """
        return run(model, inputs, items)

    def predict_step(
        self, trainer: Trainer, run: Callable[..., Any], model: nn.Module, inputs: Any, loss_only: bool
    ) -> Any:
        """Runs the forward of one batch and returns loss, logits and labels, each of which may be None.

        `run(model, inputs, loss_only)` is the Trainer's own step.
        """
        return run(model, inputs, loss_only)

    def save_model(self, trainer: Trainer, save: Callable[..., None], folder: str) -> None:
        """Writes the model in the format of from_pretrained(). The Trainer calls it on all ranks.

        `save()` writes the model as the Trainer does, and `save(state_dict=...)` writes these weights.
        """
        save()

    def load_model(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Reads the weights of a checkpoint, on all ranks. `load()` reads them as the Trainer does."""
        load()

    def save_state(self, trainer: Trainer, save: Callable[[], None], folder: str) -> None:
        """Adds to a checkpoint the state that a run needs to continue. The Trainer calls it on all ranks.

        `save()` writes the optimizer and the learning rate schedule as the Trainer does.
        """
        save()

    def load_state(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Reads the state that save_state() has written. The Trainer calls it on all ranks."""
        load()

    def load_random_state(self, trainer: Trainer, load: Callable[[str], None], folder: str) -> None:
        """Restores the random generators. `load(folder)` restores them as the Trainer does."""
        load(folder)

    def report(self) -> dict[str, float]:
        """Returns numbers for the Trainer's log, measured since the last call."""
        return {}


def described_by(plugin: Plugin, arguments: dict[str, Any]) -> str:
    """Returns a plugin's constructor call, without the arguments that have their default values.

    The defaults are those of the plugin's class, which may be a subclass.
    """
    defaults = {name: one.default for name, one in inspect.signature(type(plugin)).parameters.items()}
    changed = {name: value for name, value in arguments.items() if value != defaults.get(name, ...)}
    return f"{type(plugin).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
