"""Lightning's DDPStrategy with smdp.torch.DistributedDataParallel, registered as strategy="smdp"."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins import LayerSync, TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import Optimizer

from smdp import environments
from smdp.environments.single import SingleProcess
from smdp.lightning.divided_models import check_saving, clip_by_norm, sampler_options
from smdp.lightning.launched import check_devices, launched
from smdp.lightning.layer_sync import SyncBatchNorms
from smdp.lightning.shards_of_module import ShardsOfModule
from smdp.lightning.sixteen_bits import SixteenBits
from smdp.torch import (
    MixedPrecision,
    ShardedDataParallel,
    ShardedOptimizer,
    checkpoint_activations,
    offload_activations,
)
from smdp.torch.plugin_support import (
    DistributedDataParallel,
    asked_sharding,
    asked_shards,
    check_not_sharded,
    check_reducer_options,
    is_offloaded,
    read_policy,
    target_of,
    whole_values,
)

_NAMES = {
    name
    for class_ in (DDPStrategy, torch.nn.parallel.DistributedDataParallel, DistributedDataParallel)
    for name, parameter in inspect.signature(class_).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD or parameter.kind is parameter.KEYWORD_ONLY
} - {"module", "device_ids", "mixed_precision", "delay_all_reduce_named_params"}
_HOOKS = ("ddp_comm_hook", "ddp_comm_wrapper", "ddp_comm_state")


class SmdpStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with gradients averaged by smdp.

    A module's `configure_model()` may divide its model by `smdp.torch.tensor_parallel()`. Ranks that share a
    model then read the same batches, and gradients are clipped by the norm over all slices.

    Args:
        *args: The positional arguments of DDPStrategy.
        compression: The format in which float32 gradients travel between hosts: "none", "fp16", "bf16",
            "int8" or "topk".
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
            in which they are gathered. Default: the Trainer's `precision`.
        **kwargs: The keyword arguments of DDPStrategy and of smdp.torch.DistributedDataParallel.

    Raises:
        ValueError: An argument is not valid, `process_group_backend` is not "smdp", or a communication hook
            is given.
        TypeError: Neither class has such an argument, or the strategy sets it itself.
    """

    _layer_sync: LayerSync | None
    cluster_environment: ClusterEnvironment | None
    optimizers: list[Optimizer]

    def __init__(
        self,
        *args: Any,
        compression: str = "none",
        shard_optimizer: bool | str | Mapping[str, Any] = False,
        shard_parameters: bool | int | Mapping[str, Any] = False,
        recompute: Any = None,
        offload: str | None = None,
        precision: str | None = None,
        **kwargs: Any,
    ) -> None:
        backend = kwargs.setdefault("process_group_backend", "smdp")
        if backend != "smdp":
            raise ValueError(
                f"[smdp] SmdpStrategy: process_group_backend is {backend!r}; it must be 'smdp'. For other"
                " backends, use DDPStrategy."
            )
        hooks = [name for name in _HOOKS if kwargs.get(name)]
        if hooks:
            raise ValueError(
                f"[smdp] SmdpStrategy does not support {hooks[0]}. Use compression=..., or hooks with"
                " DDPStrategy(process_group_backend='smdp')."
            )
        unknown = [name for name in kwargs if name not in _NAMES]
        if unknown:
            raise TypeError(
                f"[smdp] SmdpStrategy does not support the argument {unknown[0]}={kwargs[unknown[0]]!r}."
                " Supported are the arguments of DDPStrategy and smdp.torch.DistributedDataParallel that"
                f" Lightning does not set: {', '.join(sorted(_NAMES.difference(_HOOKS)))}."
            )
        topk = {name: kwargs[name] for name in ("topk_ratio", "topk_momentum") if name in kwargs}
        check_reducer_options("SmdpStrategy", compression, kwargs.get("bucket_cap_mb"), **topk)
        self._sharding = asked_sharding("SmdpStrategy", shard_optimizer)
        sixteen_bits = None if precision is None else SixteenBits("SmdpStrategy", precision)
        others = {
            "shard_optimizer": None if shard_optimizer is False else shard_optimizer,
            "bucket_cap_mb": kwargs.get("bucket_cap_mb"),
            "precision": precision,
        }
        if compression != "none":
            others["compression"] = compression
        given = {name: value for name, value in others.items() if value is not None}
        self._precision = precision
        self._shards: ShardsOfModule | None = None
        shards = asked_shards("SmdpStrategy", shard_parameters, given)
        if shards is not None:
            self._shards = ShardsOfModule({**shards, "dtype": sixteen_bits and sixteen_bits.dtype})
        elif sixteen_bits is not None:
            if kwargs.get("precision_plugin") is not None:
                raise ValueError(
                    f"[smdp] SmdpStrategy: precision={precision!r} and precision_plugin cannot be used"
                    " together, because each converts the model. Use one of them."
                )
            kwargs["precision_plugin"] = sixteen_bits
        self._recompute = None if recompute is None else read_policy(recompute, "recompute")
        if offload is not None:
            target_of(offload)
        self._offload = offload
        super().__init__(*args, **kwargs)
        self._compression = compression

    def set_world_ranks(self) -> None:
        """Sets the ranks of DDPStrategy from the launcher that smdp detects."""
        # Lightning calls this before it starts processes, which it must not do under a launcher.
        if self.cluster_environment is not None:
            self.cluster_environment = launched(self.cluster_environment, self.num_processes * self.num_nodes)
        super().set_world_ranks()

    def setup_environment(self) -> None:
        """Sets up the environment of DDPStrategy.

        Raises:
            ValueError: The Trainer's number of processes differs from the launcher's.
        """
        # The process is alone, or Lightning started it, whose variables smdp does not treat as a launcher's.
        if environments.find() is SingleProcess:
            super().setup_environment()
            return
        launch = environments.detect(needs_master=False)
        if launch.world_size != 1:  # otherwise Lightning may have started the other processes
            check_devices(launch, self.num_processes, self.num_nodes)
        super().setup_environment()

    def setup(self, trainer: Trainer) -> None:
        """Sets up DDPStrategy. Batch norms are also synchronized on CPUs.

        Raises:
            ValueError: The Trainer's precision does not go with the strategy's arguments, or another Trainer
                has sharded the model.
        """
        self._check_precision(trainer)
        if isinstance(self._layer_sync, TorchSyncBatchNorm):
            self._layer_sync = SyncBatchNorms()
        self.optimizers = []  # a sharded one from an earlier fit() would keep its part of the gradients
        check_saving(self._parameters(), trainer)
        wrapper = None if self._shards is None else self._shards.wrapper_of(self.lightning_module)
        if wrapper is not None and trainer.state.fn != TrainerFn.FITTING:
            assert self.accelerator is not None
            self.accelerator.setup(trainer)
            self.model = wrapper  # DDPStrategy would send the first rank's shards to all
            self.setup_precision_plugin()
            return
        if wrapper is None and self.lightning_module is not None:
            check_not_sharded(self.lightning_module)
        super().setup(trainer)

    def _check_precision(self, trainer: Trainer) -> None:
        plugin: Any = self.precision_plugin
        asked = plugin.precision
        if isinstance(plugin, SixteenBits):
            asked = trainer._accelerator_connector._precision_flag
        if self._precision is not None and asked != "32-true":
            raise ValueError(
                f"[smdp] SmdpStrategy: precision={self._precision!r} and the Trainer's precision={asked!r}"
                " cannot be used together, because each converts the model. Use one of them."
            )
        if self._shards is not None and trainer.state.fn == TrainerFn.FITTING:
            self._shards.check(plugin)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments of the sampler that Lightning adds to data loaders."""
        kwargs: dict[str, Any] = super().distributed_sampler_kwargs
        return sampler_options(self._parameters()) or kwargs

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns the state of the LightningModule.

        Raises:
            RuntimeError: It is divided.
        """
        check_saving(self._parameters())
        if self._shards is not None and self._shards.wrapper_of(self.lightning_module) is not None:
            return whole_values(self.lightning_module, is_kept=self.is_global_zero)
        state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def _parameters(self) -> list[nn.Parameter]:
        module = self.lightning_module
        return [] if module is None else list(module.parameters())

    def _setup_model(self, model: nn.Module) -> nn.Module:
        if self._shards is not None and (wrapper := self._shards.wrapper_of(model)) is not None:
            return wrapper
        if self._recompute is not None:
            checkpoint_activations(model, self._recompute)
        if self._offload is not None and not is_offloaded(model):
            offload_activations(model, self._offload)
        plugin: Any = self.precision_plugin
        scaler = getattr(plugin, "scaler", None)
        if self._shards is not None:
            return self._shards.shard(model, plugin, self._ddp_kwargs)
        wrapped = DistributedDataParallel(
            model,
            device_ids=self.determine_ddp_device_ids(),
            compression=self._compression,
            **self._ddp_kwargs,
        )
        if sampler_options(model.parameters()) is not None:
            plugin.clip_grad_by_norm = clip_by_norm
        if scaler is not None:
            wrapped.follow(scaler)
        return wrapped

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Creates the optimizers, and shards the state if `shard_optimizer` asks for it.

        Raises:
            ValueError: There are several optimizers, or this one cannot be sharded.
        """
        super().setup_optimizers(trainer)
        if self._shards is not None:
            for one in self.optimizers:
                self._shards.gather_states(one)
        plugin = self.precision_plugin
        if self._sharding is None and not isinstance(plugin, SixteenBits):
            return
        if len(self.optimizers) > 1:
            kinds = ", ".join(type(optimizer).__name__ for optimizer in self.optimizers)
            raise ValueError(
                f"[smdp] SmdpStrategy: configure_optimizers() returned {len(self.optimizers)} optimizers"
                f" ({kinds}), but shard_optimizer and precision support one. Use one optimizer with several"
                " parameter groups, or leave them out."
            )
        assert isinstance(self.model, DistributedDataParallel)
        for place, one in enumerate(self.optimizers):
            made = one
            if self._sharding is not None:
                dtype = torch.float32 if isinstance(plugin, SixteenBits) else None
                made = ShardedOptimizer(one, self.model, master_dtype=dtype, **self._sharding)
            if isinstance(plugin, SixteenBits):
                made = plugin.keep_masters(made, self.model)
            self.optimizers[place] = made

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns an optimizer's state for a checkpoint, that of a sharded one on rank 0 only. Collective."""
        plain = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        if self._shards is not None:
            self._shards.collect(plain, is_kept=self.is_global_zero)
            return plain.state_dict() if self.is_global_zero else {}
        inner = plain.inner if isinstance(plain, MixedPrecision) else plain
        if not isinstance(inner, ShardedOptimizer):
            state: dict[str, Any] = super().optimizer_state(plain)
            return state
        inner.consolidate(to=0)
        return plain.state_dict() if self.is_global_zero else {}

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulates gradients in the context, without averaging them over replicas."""
        is_sharded = isinstance(self.model, ShardedDataParallel)
        with self.model.no_sync() if is_sharded else super().block_backward_sync():
            yield

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Makes a step. That of shards begins with averaged gradients, so the closure runs before."""
        if self._shards is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        result = self.precision_plugin._wrap_closure(model or self.lightning_module, optimizer, closure)
        return optimizer.step(closure=lambda: result, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the validation step, without inference mode if parameters are gathered in it."""
        with self._without_inference_mode():
            return self._converted(super().validation_step(*args, **kwargs))

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the test step; see validation_step()."""
        with self._without_inference_mode():
            return self._converted(super().test_step(*args, **kwargs))

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the prediction step; see validation_step()."""
        with self._without_inference_mode():
            return self._converted(super().predict_step(*args, **kwargs))

    def _converted(self, result: Any) -> Any:
        plugin = self.precision_plugin
        return plugin.convert_output(result) if isinstance(plugin, SixteenBits) else result

    @contextlib.contextmanager
    def _without_inference_mode(self) -> Iterator[None]:
        if self._shards is None:
            yield
            return
        with torch.inference_mode(False), torch.no_grad():
            yield

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Registers "smdp", without DDPStrategy's own names."""
        strategy_registry.register("smdp", cls, description="DDP on smdp's gradient reducer")


SmdpStrategy.register_strategies(StrategyRegistry)
