"""Trainers with plugins."""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import distributed_concat
from transformers.trainer_utils import SaveStrategy
from transformers.training_args import ParallelMode

from smdp.preemption import give_back
from smdp.torch.plugin_support import uncounted
from smdp.transformers.loss_items import watched
from smdp.transformers.plugin import Plugin
from smdp.transformers.preemption import PreemptionCallback, owes_evaluation, spare_workers
from smdp.transformers.resumption import check_complete, newest_complete
from smdp.transformers.same_plugins import check_same_plugins


def with_plugins(trainer_class: type[transformers.Trainer]) -> type[transformers.Trainer]:
    """Returns a subclass of a Trainer class with the additional argument `plugins=[...]`.

    Args:
        trainer_class: transformers.Trainer or any subclass of it.

    Raises:
        TypeError: `trainer_class` is not such a class.
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, transformers.Trainer)):
        raise TypeError(
            f"[smdp] with_plugins() needs a subclass of transformers.Trainer, but got {trainer_class!r}."
        )
    if issubclass(trainer_class, _WithPlugins):
        return trainer_class
    return type(trainer_class.__name__, (_WithPlugins, trainer_class), {"__doc__": trainer_class.__doc__})


class _WithPlugins:
    """Mixin before a Trainer class that passes its steps through the plugins."""

    def __init__(self, *args: Any, plugins: Iterable[Plugin] | None = (), **kwargs: Any) -> None:
        self.plugins = _checked(plugins)
        self._made: torch.optim.Optimizer | None = None
        self._train_loader: DataLoader[Any] | None = None
        self._is_wrapped_for_evaluation = False
        super().__init__(*args, **kwargs)
        trainer: Any = self
        callbacks = trainer.callback_handler.callbacks
        # A plugin that places the model averages over its parts, and a loss function gets the number itself.
        self._is_loss_known = (
            not self.plugins
            or any(plugin.places_model for plugin in self.plugins)
            or trainer.compute_loss_func is not None
            or trainer.label_smoother is not None
        )
        self._is_sparing = any(isinstance(one, PreemptionCallback) for one in callbacks)
        if not self._is_sparing and any(plugin.preemption for plugin in self.plugins):
            self._is_sparing = True
            trainer.add_callback(PreemptionCallback())

    def create_accelerator_and_postprocess(self) -> None:
        """Creates the Trainer's Accelerator and lets plugins change it."""
        trainer: Any = self
        if trainer.args.world_size > 1 and torch.distributed.is_initialized():
            check_same_plugins(self.plugins)
        for plugin in self.plugins:
            plugin.set_up(trainer.args)
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        for plugin in self.plugins:
            prepare = trainer.accelerator.prepare_model
            trainer.accelerator.prepare_model = functools.partial(_prepare, trainer, plugin, prepare)
            wrap = functools.partial(plugin.wrap_optimizer, trainer, trainer.accelerator.prepare_optimizer)
            trainer.accelerator.prepare_optimizer = wrap
            plugin.change_accelerator(trainer)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        # A model on the meta device cannot be moved. The plugin places it later.
        is_meta = any(parameter.is_meta for parameter in model.parameters())
        if not (is_meta and any(one.places_model or one.materializes_model for one in self.plugins)):
            super()._move_model_to_device(model, device)  # type: ignore[misc]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains like the Trainer. `resume_from_checkpoint=True` selects the newest complete checkpoint.

        Raises:
            ValueError: The given checkpoint is incomplete, or all checkpoints are.
        """
        trainer: Any = self
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_complete(trainer.args.output_dir) or True
        elif resume_from_checkpoint:
            check_complete(resume_from_checkpoint)
        self._unwrap_after_evaluation()
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        except BaseException:
            if self._is_sparing:
                give_back(is_failing=True)  # callbacks are not called after an error
            raise

    def _unwrap_after_evaluation(self) -> None:
        # Accelerate does not wrap a model for training if it has prepared it for evaluation, so each rank
        # would train alone.
        trainer: Any = self
        if self._is_wrapped_for_evaluation:
            self._is_wrapped_for_evaluation = False
            trainer.model_wrapped = trainer.model
            # This removes autocast from the model's forward.
            trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False, keep_torch_compile=False)
            vars(trainer.model).pop("_is_accelerate_prepared", None)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Returns the Trainer's loader, whose workers survive a launcher's SIGTERM."""
        self._train_loader = super().get_train_dataloader()  # type: ignore[misc]
        return self._spared(self._train_loader)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """Returns the Trainer's loader, whose workers survive a launcher's SIGTERM."""
        return self._spared(super().get_eval_dataloader(*args, **kwargs))  # type: ignore[misc]

    def _spared(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        if self._is_sparing:
            spare_workers(loader)
        return loader

    def _place_model(self, loader: DataLoader[Any] | None = None) -> None:
        for plugin in self.plugins:
            plugin.place_model(self, loader)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Creates the Trainer's optimizer, or takes the user's, and lets each plugin change it once."""
        trainer: Any = self
        self._place_model(self._train_loader)
        make = functools.partial(super().create_optimizer, *args, **kwargs)  # type: ignore[misc]
        if trainer.optimizer is None or trainer.optimizer is not self._made:
            for plugin in self.plugins:
                make = functools.partial(plugin.make_optimizer, trainer, make)
        trainer.optimizer = self._made = make()
        return trainer.optimizer

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Runs the Trainer's step through the plugins."""
        run = super().training_step  # type: ignore[misc]
        for plugin in self.plugins:
            run = functools.partial(plugin.run_step, self, run)
        return run(model, inputs, num_items_in_batch)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the Trainer's loss. The first call learns whether the model divides by the item count."""
        compute = functools.partial(super().compute_loss, model, inputs, *args, **kwargs)  # type: ignore[misc]
        if self._is_loss_known or kwargs.get("num_items_in_batch") is None:
            return compute()
        trainer: Any = self

        def learn(divides: bool) -> None:
            trainer.model_accepts_loss_kwargs = divides

        # Keeping the compiler's wrapper would unwrap the model inside it.
        inner = trainer.accelerator.unwrap_model(model, keep_torch_compile=False)
        with watched(model, inner, learn):
            loss = compute()
        self._is_loss_known = True
        return loss

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluates like the Trainer, after plugins have placed the model."""
        self._place_model(dataloader)
        with uncounted():  # plugins report only the waiting times of training
            return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Runs the Trainer's prediction step through the plugins."""
        predict = super().prediction_step  # type: ignore[misc]

        def run(model: nn.Module, inputs: Any, loss_only: bool) -> Any:
            return predict(model, inputs, loss_only, *args, **kwargs)

        for plugin in self.plugins:
            run = functools.partial(plugin.predict_step, self, run)
        return run(model, inputs, prediction_loss_only)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        trainer: Any = self
        folder = trainer.args.output_dir if output_dir is None else output_dir
        save = functools.partial(super()._save, folder)  # type: ignore[misc]
        if state_dict is None:
            for plugin in self.plugins:
                save = functools.partial(plugin.save_model, trainer, save, folder)
            save()
        else:
            save(state_dict=state_dict)

    def _load_model(self, load: Callable[[], None], folder: str) -> None:
        for plugin in self.plugins:
            load = functools.partial(plugin.load_model, self, load, folder)
        load()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load = super()._load_from_checkpoint  # type: ignore[misc]
        self._load_model(functools.partial(load, resume_from_checkpoint, model), resume_from_checkpoint)

    def _load_best_model(self) -> None:
        trainer: Any = self
        self._load_model(super()._load_best_model, trainer.state.best_model_checkpoint)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save = functools.partial(super()._save_optimizer_and_scheduler, output_dir)  # type: ignore[misc]
        for plugin in self.plugins:
            save = functools.partial(plugin.save_state, self, save, output_dir)
        save()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        load = functools.partial(super()._load_optimizer_and_scheduler, checkpoint)  # type: ignore[misc]
        if checkpoint is not None:
            for plugin in self.plugins:
                load = functools.partial(plugin.load_state, self, load, checkpoint)
        load()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        load = super()._load_rng_state  # type: ignore[misc]
        if checkpoint is not None:
            for plugin in self.plugins:
                load = functools.partial(plugin.load_random_state, self, load)
        load(checkpoint)

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, *args: Any
    ) -> tuple[int, int]:
        begin = super()._init_training_state  # type: ignore[misc]
        trained, steps = begin(max_steps, steps_per_epoch, epochs, *args)
        # This makes the Trainer call _run_epoch() even if no epoch is left.
        return min(trained, max(epochs - 1, 0)), steps

    def _run_epoch(self, **options: Any) -> None:
        """Runs the Trainer's epoch, after the evaluation that a preemption checkpoint has postponed."""
        trainer: Any = self
        run = super()._run_epoch  # type: ignore[misc]
        if options["resume_from_checkpoint"] is None or options["epoch"] != options["epochs_trained"]:
            run(**options)
            return
        with tempfile.TemporaryDirectory() as after_evaluation:
            if owes_evaluation(trainer.args, trainer.state):
                self._make_up_evaluation(**options)
                # From here on the Trainer reads only the random state of the checkpoint.
                trainer._save_rng_state(after_evaluation)
                options["resume_from_checkpoint"] = after_evaluation
            if trainer.state.global_step >= trainer.state.max_steps:
                trainer.control.should_training_stop = True
            if not trainer.control.should_training_stop:  # the Trainer checks this only after a step
                run(**options)

    def _make_up_evaluation(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, resume_from_checkpoint: str, **_: Any
    ) -> None:
        trainer: Any = self
        trainer._load_rng_state(resume_from_checkpoint)
        metrics = trainer._evaluate(trial, ignore_keys_for_eval)
        is_best = trainer._determine_best_metric(metrics=metrics, trial=trial)
        if is_best and trainer.args.save_strategy != SaveStrategy.NO:
            trainer.state.best_model_checkpoint = str(resume_from_checkpoint)

    @property
    def _ranks_per_batch(self) -> int:
        return math.prod(plugin.ranks_per_batch for plugin in self.plugins)

    def get_tp_size(self) -> int:
        """Returns the number of ranks that read the same batch, which the Trainer uses to count batches."""
        size: int = super().get_tp_size()  # type: ignore[misc]
        return size * self._ranks_per_batch

    def _get_num_items_in_batch(self, *args: Any) -> Any:
        items = super()._get_num_items_in_batch(*args)  # type: ignore[misc]
        # With such a plugin the Accelerator gathers each batch once, so the Trainer's division is undone.
        return items * self._ranks_per_batch if isinstance(items, torch.Tensor) else items

    @property
    def _is_on_path_for_smddp(self) -> bool:
        trainer: Any = self
        return bool(trainer.args.parallel_mode == ParallelMode.SAGEMAKER_DATA_PARALLEL)

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Makes the Trainer log the mean loss of all ranks, also on its path for SMDDP."""
        trainer: Any = self
        is_logged = trainer.control.should_log and trainer.state.global_step > trainer._globalstep_last_logged
        if self.plugins and self._is_on_path_for_smddp and is_logged:
            tr_loss.copy_(distributed_concat(tr_loss).mean())
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)  # type: ignore[misc]

    def floating_point_ops(self, inputs: Any) -> float:
        """Returns the floating-point operations per rank, because the Trainer sums them over all ranks."""
        count: float = super().floating_point_ops(inputs)  # type: ignore[misc]
        return count / self._ranks_per_batch

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the numbers of the plugins to the Trainer's log of the training loss."""
        if "loss" in logs:
            for plugin in self.plugins:
                logs.update(plugin.report())
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


def _prepare(trainer: Any, plugin: Plugin, prepare: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    names = ("device_placement", "evaluation_mode")
    options = {**dict(zip(names, args, strict=False)), **kwargs}
    if options.get("evaluation_mode"):
        trainer._is_wrapped_for_evaluation = trainer.model_wrapped is trainer.model
        return prepare(model, **options)
    return plugin.wrap_model(trainer, prepare, model, **options)


def _checked(plugins: Any) -> list[Plugin]:
    if plugins is None:
        return []
    if isinstance(plugins, str) or not isinstance(plugins, Iterable):
        raise TypeError(f"[smdp] plugins is a {type(plugins).__name__}; it must be a list: plugins=[...].")
    known = list(plugins)
    for plugin in known:
        if not isinstance(plugin, Plugin):
            what = f"the class {plugin.__name__}" if isinstance(plugin, type) else repr(plugin)
            raise TypeError(
                f"[smdp] plugins contains {what}; every entry must be a smdp.transformers.Plugin, for example"
                " DataParallel()."
            )
    for one, other in itertools.permutations(known, 2):
        reason = one.conflict(other)
        if reason is not None:
            raise ValueError(
                f"[smdp] the plugins {type(one).__name__} and {type(other).__name__} cannot be used together:"
                f" {reason}."
            )
    # A plugin that places the model comes first, so that the others get whole batches, not microbatches.
    return sorted(known, key=lambda plugin: not plugin.places_model)


class Trainer(_WithPlugins, transformers.Trainer):
    """transformers.Trainer with the additional argument `plugins=[...]`."""


class Seq2SeqTrainer(_WithPlugins, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer with the additional argument `plugins=[...]`."""
