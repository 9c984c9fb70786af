"""Data parallel training on smdp's gradient reducer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.serialization import config as serialization
from transformers import Trainer, TrainingArguments

import smdp
from smdp.accelerate.memory_options import MemoryOptions
from smdp.accelerate.sharded_models import ShardedModels
from smdp.accelerate.sharded_optimizers import ShardedOptimizers
from smdp.accelerate.wrapped_models import PreparedModels, wrap_model, wrapped_in
from smdp.torch.plugin_support import (
    ProcessGroupSmdp,
    asked_sharding,
    asked_shards,
    check_reducer_options,
    on_every_rank,
    timeout_of_world,
    watch,
    whole_values,
)
from smdp.transformers.gradient_numbers import GradientNumbers
from smdp.transformers.other_parallelism import asked_for
from smdp.transformers.plugin import Plugin, described_by
from smdp.transformers.residuals import load_residuals, save_residuals
from smdp.transformers.sharded_parameters import check_arguments, options_of
from smdp.transformers.started_processes import check_started


class DataParallel(Plugin):
    """Averages gradients over all ranks with `smdp.torch.DistributedDataParallel`.

    A single process has no gradients to average, and no state to shard.

    Args:
        compression: The format in which float32 gradients travel between hosts: "none", "fp16", "bf16",
            "int8" or "topk".
        bucket_cap_mb: The largest size of a fusion buffer in MiB. Default: the training argument
            `ddp_bucket_cap_mb`, or 25.
        algorithm: The value of SMDP_ALGORITHM for the group of this plugin.
        trace: The value of SMDP_TRACE for this group, a directory for traces.
        topk_ratio: The fraction of the gradient that "topk" sends.
        topk_momentum: The momentum that "topk" applies. Set it to the optimizer's momentum, and set the
            optimizer's to 0.
        preemption: Whether to save a checkpoint on SIGTERM. When one rank receives the signal, all ranks save
            after the same step and exit with code 75.
        shard_optimizer: Whether to keep the optimizer's state once for all ranks (True), once per host
            ("host"), as smdp chooses ("auto"), or on every rank (False). A mapping has
            arguments of `smdp.torch.ShardedOptimizer`: `scope`, `share_parameters`, `offload`. Checkpoints
            have the whole state.
        shard_parameters: Whether to distribute parameters, gradients and the optimizer's state over the ranks
            of a host if there are several hosts, otherwise over all ranks (True), or over this number of
            ranks. A mapping has arguments of `smdp.torch.ShardedDataParallel`: `degree`,
            `persistence_threshold`, `max_live_parameters`, `reshard_after_forward`. Rank 0 gathers
            the whole model for checkpoints.
        recompute: Which activations backward computes again; a policy of
            `smdp.torch.checkpoint_activations()`. Default: none.
        offload: Where activations wait for backward, "disk:/DIRECTORY" or "host"; see
            `smdp.torch.offload_activations()`. Default: in memory.
        precision: "bf16" or "fp16": parameters and gradients have 16 bits, the optimizer keeps masters; see
            `smdp.torch.MixedPrecision`. With `shard_parameters`, shards keep 32 bits, and "bf16" is the dtype
            in which they are gathered. Default: the dtype of the model.

    Raises:
        ValueError: An argument is not valid.
        smdp.ConfigError: There is no such algorithm. The Trainer raises this error if traces cannot be
            written.

    Attributes:
        changed: The names of the arguments that differ from their defaults.
    """

    def __init__(
        self,
        compression: str = "none",
        bucket_cap_mb: float | None = None,
        algorithm: str | None = None,
        trace: str | os.PathLike[str] | None = None,
        *,
        topk_ratio: float = 0.01,
        topk_momentum: float = 0.0,
        preemption: bool = True,
        shard_optimizer: bool | str | Mapping[str, Any] = False,
        shard_parameters: bool | int | Mapping[str, Any] = False,
        recompute: Any = None,
        offload: str | None = None,
        precision: str | None = None,
    ) -> None:
        check_reducer_options(
            "DataParallel", compression, bucket_cap_mb, topk_ratio=topk_ratio, topk_momentum=topk_momentum
        )
        self._options = {
            "compression": compression,
            "topk_ratio": topk_ratio,
            "topk_momentum": topk_momentum,
            **({} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}),
        }
        self._sharding = asked_sharding("DataParallel", shard_optimizer)
        self._memory = MemoryOptions("DataParallel", recompute, offload, precision)
        if not isinstance(preemption, bool):
            raise ValueError(f"[smdp] DataParallel: preemption is {preemption!r}; it must be True or False.")
        variables = {"SMDP_ALGORITHM": algorithm, "SMDP_TRACE": trace}
        self._variables = {
            name: _text_of(name, value) for name, value in variables.items() if value is not None
        }
        try:
            smdp.config.Config.from_environ({**os.environ, **self._variables})
        except smdp.ConfigError as error:
            raise smdp.ConfigError(f"[smdp] DataParallel: {error}") from None
        given = {
            "compression": compression != "none",
            "bucket_cap_mb": bucket_cap_mb is not None,
            "algorithm": algorithm is not None,
            "trace": trace is not None,
            "shard_optimizer": self._sharding is not None,
            "shard_parameters": shard_parameters is not False,
            **{name: value is not None for name, value in self._memory.given.items()},
        }
        self.changed = [name for name, is_changed in given.items() if is_changed]
        # Ranks may write traces to different folders, so the folder is not compared.
        where = None if trace is None else "..."
        values = {**self._options, **self._memory.given, "shard_optimizer": shard_optimizer}
        others = {name: value for name, value in values.items() if name in self.changed}
        self._shard_options = asked_shards("DataParallel", shard_parameters, others)
        self._agreed = {
            **self._options,
            "algorithm": algorithm,
            "trace": where,
            "preemption": preemption,
            "shard_optimizer": shard_optimizer,
            "shard_parameters": shard_parameters,
            **self._memory.given,
        }
        self.preemption = preemption
        self._group: Any = None
        self._sharded: ShardedOptimizers | None = None
        self._shards: ShardedModels | None = None
        self._wrapper: nn.Module | None = None  # kept until the Trainer has it
        self._models = PreparedModels()
        self._numbers = GradientNumbers()

    def conflict(self, other: Plugin) -> str | None:
        """Returns a reason if the other plugin is also a DataParallel."""
        if isinstance(other, DataParallel):
            return "there are two DataParallel plugins, but gradients can be averaged only once"
        return None

    def described(self) -> str:
        """Returns the plugin with its arguments."""
        return described_by(self, self._agreed)

    def set_up(self, args: TrainingArguments) -> None:
        """Creates a group over smdp if the default group uses a different backend or different options.

        Raises:
            ValueError: The arguments or `accelerate launch` select DeepSpeed, FSDP or Megatron-LM, which
                average gradients themselves; the arguments describe one process although several were
                started; Accelerate would not wrap the model; or a sharded optimizer would have to be made
                again.
        """
        self._numbers = GradientNumbers()
        for name in ("deepspeed", "fsdp", "megatron_lm"):
            asked = asked_for(args, name)
            if asked is not None:
                raise ValueError(
                    f"[smdp] the plugin DataParallel and {asked} cannot be used together, because {name}"
                    " averages gradients itself. Remove one of them."
                )
        if self._sharding is not None and args.auto_find_batch_size:
            raise ValueError(
                "[smdp] DataParallel: shard_optimizer and auto_find_batch_size cannot be used together,"
                " because a sharded optimizer stays with the model that was wrapped first. Set"
                " per_device_train_batch_size."
            )
        check_started("DataParallel", args)
        if self._shard_options is not None:
            check_arguments(args)
        self._memory.check(asked_precision(args), is_checkpointed(args))
        self._group = self._sharded = self._shards = self._wrapper = None
        self._models = PreparedModels()
        if args.world_size == 1 or not dist.is_initialized():
            return
        watch()  # also if another plugin wraps the model, or torch's reducer averages
        default = dist.distributed_c10d._get_default_group()
        if isinstance(default, ProcessGroupSmdp) and not self._variables:
            self._group = default
        else:
            self._group = _group_of(self._variables, _timeout(args))
        if self._sharding is not None:
            self._sharded = ShardedOptimizers(self._sharding, self._models, self._memory.master_dtype)
        if self._shard_options is not None:
            self._shards = ShardedModels(self._shard_options, self._group, self._memory.dtype)

    def change_accelerator(self, trainer: Trainer) -> None:
        """Makes the Accelerator unwrap and clip models whose parameters are sharded."""
        if self._shards is not None:
            self._shards.change(trainer.accelerator)

    @property
    def materializes_model(self) -> bool:
        """Whether parameters are sharded. Only this rank's shards are then allocated."""
        return self._shards is not None

    def place_model(self, trainer: Trainer, loader: Any) -> None:
        """Shards the model if it has no memory."""
        if any(parameter.is_meta for parameter in trainer.model.parameters()):
            self._shard(trainer)

    def make_optimizer(self, trainer: Trainer, make: Callable[[], Optimizer]) -> Optimizer:
        """Creates the Trainer's optimizer of this rank's shards, or gives them to the user's optimizer."""
        self._shard(trainer)
        return make()

    def _shard(self, trainer: Trainer) -> None:
        if self._shards is None or self._shards.wrapper_of(trainer.model) is not None:
            return
        self._memory.change(trainer.model, is_sharded=True)
        optimizers = [] if trainer.optimizer is None else [trainer.optimizer]
        options = {"device": trainer.args.device, **options_of(trainer.args)}
        with _environment(self._variables):
            self._wrapper = self._shards.shard(trainer.model, optimizers, **options)

    def wrap_model(
        self, trainer: Trainer, prepare: Callable[..., nn.Module], model: nn.Module, **options: Any
    ) -> nn.Module:
        """Lets Accelerate wrap the model in smdp's class instead of torch's DDP."""
        wrapper = None if self._shards is None else self._shards.wrapper_of(model)
        if wrapper is not None:
            trainer._mixed_mesh_grads = False  # the Accelerator clips shards of any meshes
            prepare(wrapper.module, **{**options, "evaluation_mode": True, "device_placement": False})
            return wrapper
        if not getattr(model, "_is_accelerate_prepared", False):
            self._memory.change(model)
        if self._group is None:
            prepared = prepare(model, **options)
        else:
            prepared = wrap_model(trainer.accelerator, prepare, model, self._group, self._options, **options)
        self._models.add(prepared)
        return prepared

    def wrap_optimizer(
        self, trainer: Trainer, prepare: Callable[..., Optimizer], optimizer: Optimizer, **options: Any
    ) -> Optimizer:
        """Shards the optimizer's state, and keeps masters of 16-bit parameters, if arguments ask for it."""
        accelerator = trainer.accelerator
        if self._shards is not None:
            if not getattr(optimizer, "_is_accelerate_prepared", False):
                self._shards.gather_states(optimizer)
            return prepare(optimizer, **{**options, "device_placement": False})
        return self._memory.prepare(accelerator, prepare, optimizer, self._models, self._sharded, **options)

    def predict_step(
        self, trainer: Trainer, run: Callable[..., Any], model: nn.Module, inputs: Any, loss_only: bool
    ) -> Any:
        """Runs the Trainer's prediction step, after which gathered parameters are released."""
        wrapper = None if self._shards is None else self._shards.wrapper_of(model)
        return run(model if wrapper is None else wrapper, inputs, loss_only)

    def save_model(self, trainer: Trainer, save: Callable[..., None], folder: str) -> None:
        """Writes the model as the Trainer does. Ranks that write gather its shards."""
        if self._shards is None or self._shards.wrapper_of(trainer.model) is None:
            save()
        else:
            save(state_dict=whole_values(trainer.model, is_kept=trainer.args.should_save))

    def load_model(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Reads the weights of a checkpoint into the model, or into shards if the model has no memory."""
        self.place_model(trainer, None)
        load()

    def save_state(self, trainer: Trainer, save: Callable[[], None], folder: str) -> None:
        """Adds the whole state of a sharded optimizer and the residuals of compression to a checkpoint."""
        if self._sharded is not None:
            self._sharded.collect([trainer.model], trainer.args.should_save)
        if self._shards is not None:
            self._shards.collect(trainer.args.should_save)
        save()
        if (model := wrapped_in(trainer.model_wrapped)) is not None:
            save_residuals(model, folder)

    def load_state(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Restores the state of the optimizer and the residuals of compression from a checkpoint."""
        # Each rank needs a part of the state, so it does not read the whole file into memory.
        is_whole = self._sharded is None and self._shards is None
        with nullcontext() if is_whole else serialization.patch({"load.mmap": True}):
            load()
        if (model := wrapped_in(trainer.model_wrapped)) is not None:
            load_residuals(model, folder)

    def report(self) -> dict[str, float]:
        """Returns milliseconds and megabytes per step since the last call."""
        return {} if self._group is None else self._numbers.report()


def asked_precision(args: TrainingArguments) -> str:
    """Returns the kind of mixed precision that training arguments ask for, "no" for none."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "no"


def is_checkpointed(args: TrainingArguments) -> bool:
    """Returns whether training arguments ask for activation checkpoints."""
    return bool(getattr(args, "activation_checkpointing", False) or args.gradient_checkpointing)


# The groups of earlier Trainers by their options, because a hyperparameter search creates many Trainers.
_groups: dict[tuple[Any, ...], Any] = {}


def _group_of(variables: dict[str, str], timeout: timedelta | None) -> Any:
    # Ranks may write traces to different folders, so the folder of the first Trainer is used.
    asked = (*sorted({**variables, "SMDP_TRACE": ""}.items()), timeout)

    def is_usable() -> bool:
        group = _groups.get(asked)
        if group is None or group not in dist.distributed_c10d._world.pg_map:
            return False
        return group.core.error() is None

    if not all(on_every_rank(is_usable)):
        with _environment(variables):
            _groups[asked] = dist.new_group(backend="smdp", timeout=timeout)
    return _groups[asked]


def _text_of(name: str, value: Any) -> str:
    if isinstance(value, str) or (name == "SMDP_TRACE" and isinstance(value, os.PathLike)):
        return os.fspath(value)
    argument = name.removeprefix("SMDP_").lower()
    raise ValueError(f"[smdp] DataParallel: {argument} is {value!r}; it must be a string.")


def _timeout(args: TrainingArguments) -> timedelta | None:
    """Returns the arguments' timeout. Their default of 30 minutes is replaced by the default group's."""
    asked: timedelta = args.ddp_timeout_delta
    return timeout_of_world() if asked == dist.default_pg_timeout else asked


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables within the context, because a group reads its options from them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
