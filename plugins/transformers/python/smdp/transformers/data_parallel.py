"""Data parallel training on smdp's gradient reducer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainingArguments

import smdp
from smdp.torch.plugin_support import (
    DistributedDataParallel,
    ProcessGroupSmdp,
    check_reducer_options,
    on_every_rank,
    timeout_of_world,
    watch,
)
from smdp.transformers.gradient_numbers import GradientNumbers
from smdp.transformers.other_parallelism import asked_for
from smdp.transformers.plugin import Plugin, described_by
from smdp.transformers.residuals import load_residuals, save_residuals
from smdp.transformers.started_processes import check_started


class DataParallel(Plugin):
    """Averages gradients over all ranks, as `smdp.torch.DistributedDataParallel` does.

    With one process it averages nothing.

    Args:
        compression: What float32 gradients travel as between hosts: "none", "fp16", "bf16", "int8", "topk".
        bucket_cap_mb: Most MiB of a fusion buffer; default: `ddp_bucket_cap_mb` of the arguments, then 25.
        algorithm: As SMDP_ALGORITHM, for this plugin's own group.
        trace: As SMDP_TRACE, a directory for traces.
        topk_ratio: Part of the gradient that "topk" sends.
        topk_momentum: Momentum correction of "topk".
        preemption: Once a rank got SIGTERM, all save a checkpoint after the same step and exit with code 75.

    Raises:
        ValueError: An argument is wrong.
        smdp.ConfigError: There is no such algorithm. The Trainer raises it where no traces can be written.

    Attributes:
        changed: Names of the arguments that are not as by default.
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
        }
        self.changed = [name for name, is_changed in given.items() if is_changed]
        # Ranks may write their traces to different folders.
        where = None if trace is None else "..."
        self._agreed = {**self._options, "algorithm": algorithm, "trace": where, "preemption": preemption}
        self.preemption = preemption
        self._group: Any = None
        self._numbers = GradientNumbers()

    def conflict(self, other: Plugin) -> str | None:
        """Refuse a second of its kind."""
        if isinstance(other, DataParallel):
            return "there are two DataParallel; gradients can be averaged only once"
        return None

    def described(self) -> str:
        """Give its arguments."""
        return described_by(self, self._agreed)

    def set_up(self, args: TrainingArguments) -> None:
        """Make a group over smdp, beside the default one where that is of another backend.

        Raises:
            ValueError: The arguments or `accelerate launch` ask for DeepSpeed, FSDP or Megatron-LM, which
                average gradients themselves; the arguments know of one process where several were started;
                or Accelerate would wrap no model.
        """
        self._numbers = GradientNumbers()
        for name in ("deepspeed", "fsdp", "megatron_lm"):
            asked = asked_for(args, name)
            if asked is not None:
                raise ValueError(
                    f"[smdp] the plugin DataParallel and {asked} contradict: {name} averages gradients"
                    " itself. Leave one of them out."
                )
        check_started("DataParallel", args)
        self._group = None
        if args.world_size == 1 or not dist.is_initialized():
            return
        watch()  # also where the model is wrapped by another plugin, or left to torch's reducer
        default = dist.distributed_c10d._get_default_group()
        if isinstance(default, ProcessGroupSmdp) and not self._variables:
            self._group = default
        else:
            self._group = _group_of(self._variables, _timeout(args))

    def wrap_model(
        self, trainer: Trainer, prepare: Callable[..., nn.Module], model: nn.Module, **options: Any
    ) -> nn.Module:
        """Let Accelerate wrap it, by smdp's class instead of torch's."""
        if self._group is None:
            return prepare(model, **options)
        group, own = self._group, self._options

        class Configured(DistributedDataParallel):
            """With the plugin's options, which Accelerate does not know."""

            def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
                super().__init__(module, *args, **{"process_group": group, **kwargs, **own})
                if trainer.accelerator.scaler is not None:
                    self.follow(trainer.accelerator.scaler)

        with _replaced(Configured):
            return prepare(model, **options)

    def save_state(self, trainer: Trainer, save: Callable[[], None], folder: str) -> None:
        """Add what compression keeps for later steps."""
        save()
        if (model := _wrapped(trainer)) is not None:
            save_residuals(model, folder)

    def load_state(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Read it."""
        load()
        if (model := _wrapped(trainer)) is not None:
            load_residuals(model, folder)

    def report(self) -> dict[str, float]:
        """Give milliseconds and megabytes per step since the last call."""
        return {} if self._group is None else self._numbers.report()


def _wrapped(trainer: Trainer) -> DistributedDataParallel | None:
    model = getattr(trainer.model_wrapped, "_orig_mod", trainer.model_wrapped)  # torch.compile's
    return model if isinstance(model, DistributedDataParallel) else None


# What earlier Trainers train over, by what it was made with: a search makes many.
_groups: dict[tuple[Any, ...], Any] = {}


def _group_of(variables: dict[str, str], timeout: timedelta | None) -> Any:
    # Ranks may write traces to different folders, each to the one that its first Trainer named.
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
    raise ValueError(f"[smdp] DataParallel: {argument} is {value!r}; it must be a text.")


def _timeout(args: TrainingArguments) -> timedelta | None:
    """Give the arguments'; half an hour, their default, gives way to the default group's and SMDP_TIMEOUT."""
    asked: timedelta = args.ddp_timeout_delta
    return timeout_of_world() if asked == dist.default_pg_timeout else asked


@contextmanager
def _replaced(wrapper: type) -> Iterator[None]:
    """Accelerate looks torch's class up by name each time it wraps a model."""
    plain = nn.parallel.DistributedDataParallel
    nn.parallel.DistributedDataParallel = wrapper
    try:
        yield
    finally:
        nn.parallel.DistributedDataParallel = plain


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """A group reads its options from the environment."""
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
