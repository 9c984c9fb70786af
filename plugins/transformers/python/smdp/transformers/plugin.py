"""What a plugin of the Trainer can take over. Provisional: it may still change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments


class Plugin:
    """A part of `Trainer(..., plugins=[...])`. Every method may be left as it is.

    Plugins are asked in the order of the list, one that places the model first; with several that wrap the
    model or a step, the last is outermost.

    Attributes:
        places_model: The plugin decides where the model's parameters lie; the Trainer leaves them.
        ranks_per_batch: How many ranks work on one batch together; the Trainer counts them as one.
        preemption: Whether the Trainer, once a rank got SIGTERM, saves a checkpoint and exits with code 75.
    """

    places_model = False
    ranks_per_batch = 1
    preemption = False

    def conflict(self, other: Plugin) -> str | None:
        """Say why this plugin cannot work with another one of the list; None: it can."""
        return None

    def described(self) -> str:
        """Say what must be the same on all ranks; where one says something else, all fail at the start."""
        return described_by(self, {})

    def set_up(self, args: TrainingArguments) -> None:
        """Check arguments and make process groups, before the Trainer makes its Accelerator."""

    def change_accelerator(self, trainer: Trainer) -> None:
        """Change what the Trainer's Accelerator does; it has just been made."""

    def place_model(self, trainer: Trainer, loader: DataLoader[Any] | None) -> None:
        """Put the model where it runs, before it first does and before an optimizer is made of it.

        It is called more than once.

        Args:
            trainer: Whose `model` it is.
            loader: Of batches as the model will get them; None where the Trainer has made none yet.
        """

    def wrap_model(
        self, trainer: Trainer, prepare: Callable[..., nn.Module], model: nn.Module, **options: Any
    ) -> nn.Module:
        """Wrap the model for training. `prepare(model, **options)` is what the Trainer would do."""
        return prepare(model, **options)

    def make_optimizer(self, trainer: Trainer, make: Callable[[], Optimizer]) -> Optimizer:
        """Give the optimizer to use; `make()` gives the Trainer's, or the user's."""
        return make()

    def run_step(
        self, trainer: Trainer, run: Callable[..., Tensor], model: nn.Module, inputs: Any, items: Any
    ) -> Tensor:
        """Run forward and backward of one batch and give the loss.

        Args:
            trainer: Whose step it is.
            run: `run(model, inputs, items)` is what the Trainer would do.
            model: As wrapped.
            inputs: The batch.
            items: How many items, such as tokens, the losses of an optimizer's step are divided by, or None.
        """
        return run(model, inputs, items)

    def predict_step(
        self, trainer: Trainer, run: Callable[..., Any], model: nn.Module, inputs: Any, loss_only: bool
    ) -> Any:
        """Run the forward of one batch; give loss, logits and labels, each of which may be None.

        `run(model, inputs, loss_only)` is what the Trainer would do.
        """
        return run(model, inputs, loss_only)

    def save_model(self, trainer: Trainer, save: Callable[..., None], folder: str) -> None:
        """Write the model as from_pretrained() reads it; called on all ranks.

        `save()` is what the Trainer would do; `save(state_dict=...)` takes the weights from there.
        """
        save()

    def load_model(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Read weights of a checkpoint; called on all ranks. `load()` is what the Trainer would do."""
        load()

    def save_state(self, trainer: Trainer, save: Callable[[], None], folder: str) -> None:
        """Add to a checkpoint what a run needs to go on; called on all ranks.

        `save()` is what the Trainer would do: it writes optimizer and schedule of the learning rate.
        """
        save()

    def load_state(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Read what save_state() has written; called on all ranks."""
        load()

    def load_random_state(self, trainer: Trainer, load: Callable[[str], None], folder: str) -> None:
        """Set random generators as they were; `load(folder)` is what the Trainer would do."""
        load(folder)

    def report(self) -> dict[str, float]:
        """Give numbers for the Trainer's log, over the time since the last call."""
        return {}


def described_by(plugin: Plugin, arguments: dict[str, Any]) -> str:
    """Write a plugin as it was made, without the arguments that are as by default.

    A subclass may take others, or have other defaults.
    """
    defaults = {name: one.default for name, one in inspect.signature(type(plugin)).parameters.items()}
    changed = {name: value for name, value in arguments.items() if value != defaults.get(name, ...)}
    return f"{type(plugin).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
