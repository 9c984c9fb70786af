"""Trainers that take plugins."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import nn
from transformers.training_args import ParallelMode

from smdp.transformers.plugin import Plugin


def with_plugins(trainer_class: type[transformers.Trainer]) -> type[transformers.Trainer]:
    """Give a subclass of a Trainer class that takes `plugins=[...]`.

    Args:
        trainer_class: transformers.Trainer or any subclass of it.

    Raises:
        TypeError: It is not one.
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, transformers.Trainer)):
        raise TypeError(
            f"[smdp] with_plugins() takes a subclass of transformers.Trainer, got {trainer_class!r}."
        )
    if issubclass(trainer_class, _WithPlugins):
        return trainer_class
    return type(trainer_class.__name__, (_WithPlugins, trainer_class), {"__doc__": trainer_class.__doc__})


class _WithPlugins:
    """Goes before a Trainer class: hands its steps through the plugins."""

    def __init__(self, *args: Any, plugins: Iterable[Plugin] = (), **kwargs: Any) -> None:
        self.plugins = _checked(plugins)
        self._made: torch.optim.Optimizer | None = None
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """As the Trainer's; then plugins wrap what Accelerate would."""
        trainer: Any = self
        for plugin in self.plugins:
            plugin.set_up(trainer.args)
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        for plugin in self.plugins:
            prepare = trainer.accelerator.prepare_model
            trainer.accelerator.prepare_model = functools.partial(_prepare, trainer, plugin, prepare)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        wrap = super()._wrap_model  # type: ignore[misc]
        trainer: Any = self
        # On its path for SMDDP the Trainer wraps the model itself, and Accelerate does not.
        if training and trainer.args.parallel_mode == ParallelMode.SAGEMAKER_DATA_PARALLEL:
            for plugin in self.plugins:
                wrap = functools.partial(plugin.wrap_model, trainer, wrap)
        return wrap(model, training=training, dataloader=dataloader)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As the Trainer's, and then the plugins', once, also for one that the user gave."""
        trainer: Any = self
        super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        if trainer.optimizer is not self._made:
            for plugin in self.plugins:
                trainer.optimizer = plugin.make_optimizer(trainer, trainer.optimizer)
            self._made = trainer.optimizer
        return trainer.optimizer

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's, within the plugins'."""
        run = functools.partial(super().training_step, *args, **kwargs)  # type: ignore[misc]
        for plugin in self.plugins:
            run = functools.partial(plugin.run_step, self, run)
        return run()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        trainer: Any = self
        name = f"{transformers.trainer_utils.PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        for plugin in self.plugins:
            plugin.save(trainer, os.path.join(trainer._get_output_dir(trial=trial), name))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is not None:
            for plugin in self.plugins:
                plugin.load(self, checkpoint)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the Trainer's, with what plugins report beside the loss of training."""
        if "loss" in logs:
            for plugin in self.plugins:
                logs.update(plugin.report())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


def _prepare(trainer: Any, plugin: Plugin, prepare: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    names = ("device_placement", "evaluation_mode")
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    if options.get("evaluation_mode"):
        return prepare(model, **options)
    return plugin.wrap_model(trainer, prepare, model, **options)


def _checked(plugins: Any) -> list[Plugin]:
    if not isinstance(plugins, Iterable):
        raise TypeError(f"[smdp] plugins is a {type(plugins).__name__}; it must be a list: plugins=[...].")
    known = list(plugins)
    for plugin in known:
        if not isinstance(plugin, Plugin):
            what = f"the class {plugin.__name__}" if isinstance(plugin, type) else repr(plugin)
            raise TypeError(
                f"[smdp] plugins has {what}; every entry must be a smdp.transformers.Plugin, e.g."
                " DataParallel()."
            )
    for one, other in itertools.permutations(known, 2):
        reason = one.conflict(other)
        if reason is not None:
            raise ValueError(
                f"[smdp] plugins {type(one).__name__} and {type(other).__name__} contradict: {reason}."
            )
    return known


class Trainer(_WithPlugins, transformers.Trainer):
    """transformers.Trainer, with `plugins=[...]`."""


class Seq2SeqTrainer(_WithPlugins, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer, with `plugins=[...]`."""


def hint_at_plugins() -> None:
    """Make a Trainer that takes no plugins say which ones do."""
    plain = transformers.Trainer.__init__
    if hasattr(plain, "smdp_plain"):
        return

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "plugins" in kwargs:
            raise TypeError(
                f"[smdp] {type(self).__name__} takes no plugins. Use smdp.transformers.Trainer, or"
                f" smdp.transformers.with_plugins({type(self).__name__})."
            )
        plain(self, *args, **kwargs)

    init.smdp_plain = plain  # type: ignore[attr-defined]
    transformers.Trainer.__init__ = init
