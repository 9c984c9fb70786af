"""smdp's gradient reducer and sharded optimizers for scripts with an Accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.optim import Optimizer

from smdp.accelerate.memory_options import MemoryOptions
from smdp.accelerate.sharded_models import ShardedModels, writes
from smdp.accelerate.sharded_optimizers import ShardedOptimizers
from smdp.accelerate.wrapped_models import PreparedModels, wrap_model
from smdp.torch.plugin_support import ProcessGroupSmdp, asked_sharding, asked_shards, check_reducer_options


class DataParallel:
    """Makes an Accelerator average gradients with `smdp.torch.DistributedDataParallel`.

    A single process has no gradients to average, and no state to shard.

    Args:
        compression: The format in which float32 gradients travel between hosts: "none", "fp16", "bf16",
            "int8" or "topk".
        bucket_cap_mb: The largest size of a fusion buffer in MiB. Default: 25.
        topk_ratio: The fraction of the gradient that "topk" sends.
        topk_momentum: The momentum that "topk" applies. Set it to the optimizer's momentum, and set the
            optimizer's to 0.
        shard_optimizer: Whether to keep the state of each optimizer once for all ranks (True), once per host
            ("host"), as smdp chooses ("auto"), or on every rank (False). A mapping has
            arguments of `smdp.torch.ShardedOptimizer`: `scope`, `share_parameters`, `offload`.
        shard_parameters: Whether to distribute parameters, gradients and the optimizer's state over the ranks
            of a host if there are several hosts, otherwise over all ranks (True), or over this number of
            ranks. A mapping has arguments of `smdp.torch.ShardedDataParallel`: `degree`,
            `persistence_threshold`, `max_live_parameters`, `reshard_after_forward`. Pass model and
            optimizer to the same `prepare()`, or create the optimizer afterwards. Rank 0 gathers the whole
            model for checkpoints.
        recompute: Which activations backward computes again; a policy of
            `smdp.torch.checkpoint_activations()`. Default: none.
        offload: Where activations wait for backward, "disk:/DIRECTORY" or "host"; see
            `smdp.torch.offload_activations()`. Default: in memory.
        precision: "bf16" or "fp16": parameters and gradients have 16 bits, the optimizer keeps masters; see
            `smdp.torch.MixedPrecision`. With `shard_parameters`, shards keep 32 bits, and "bf16" is the dtype
            in which they are gathered. Default: the dtype of the model.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> from smdp.accelerate import DataParallel
        >>> DataParallel(shard_optimizer=True).apply(accelerator)  # doctest: +SKIP
        >>> model, optimizer = accelerator.prepare(model, optimizer)  # doctest: +SKIP
    """

    def __init__(
        self,
        compression: str = "none",
        bucket_cap_mb: float | None = None,
        *,
        topk_ratio: float = 0.01,
        topk_momentum: float = 0.0,
        shard_optimizer: bool | str | Mapping[str, Any] = False,
        shard_parameters: bool | int | Mapping[str, Any] = False,
        recompute: Any = None,
        offload: str | None = None,
        precision: str | None = None,
    ) -> None:
        check_reducer_options(
            "DataParallel", compression, bucket_cap_mb, topk_ratio=topk_ratio, topk_momentum=topk_momentum
        )
        self._sharding = asked_sharding("DataParallel", shard_optimizer)
        self._memory = MemoryOptions("DataParallel", recompute, offload, precision)
        self._options = {
            "compression": compression,
            "topk_ratio": topk_ratio,
            "topk_momentum": topk_momentum,
            **({} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}),
        }
        defaults = {"compression": "none", "topk_ratio": 0.01, "topk_momentum": 0.0, "shard_optimizer": False}
        values = {**self._options, "shard_optimizer": shard_optimizer, **self._memory.given}
        others = {name: value for name, value in values.items() if value != defaults.get(name)}
        self._shard_options = asked_shards("DataParallel", shard_parameters, others)

    def apply(self, accelerator: Accelerator) -> None:
        """Changes what `prepare()` and `save_state()` of an Accelerator do. Call it before `prepare()`.

        Raises:
            ValueError: The Accelerator's ranks do not communicate over smdp.
        """
        self._memory.check(accelerator.mixed_precision, is_checkpointed=False)
        group = dist.group.WORLD if accelerator.num_processes > 1 else None
        if accelerator.num_processes > 1 and not isinstance(group, ProcessGroupSmdp):
            raise ValueError(
                f"[smdp] DataParallel: the Accelerator's backend is {accelerator.state.backend!r}; it must be"
                " 'smdp'. Pass kwargs_handlers=[InitProcessGroupKwargs(backend=\"smdp\")] to it."
            )
        if self._shard_options is not None and group is not None:
            self._apply_shards(accelerator, group, self._shard_options)
            return
        models = PreparedModels()
        sharded = None
        if group is not None and self._sharding is not None:
            sharded = ShardedOptimizers(self._sharding, models, self._memory.master_dtype)
        prepare = accelerator.prepare_model

        def prepare_model(
            model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
        ) -> nn.Module:
            given = {"device_placement": device_placement, "evaluation_mode": evaluation_mode}
            if evaluation_mode:
                return prepare(model, **given)
            if not getattr(model, "_is_accelerate_prepared", False):
                self._memory.change(model)
            if isinstance(group, ProcessGroupSmdp):
                prepared = wrap_model(accelerator, prepare, model, group, self._options, **given)
            else:
                prepared = prepare(model, **given)
            models.add(prepared)
            return prepared

        prepare_optimizer = accelerator.prepare_optimizer

        def prepare_any_optimizer(optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
            return self._memory.prepare(
                accelerator,
                prepare_optimizer,
                optimizer,
                models,
                sharded,
                device_placement=device_placement,
            )

        accelerator.prepare_model = prepare_model
        accelerator.prepare_optimizer = prepare_any_optimizer
        if sharded is None:
            return
        collecting = sharded

        def collect(models: list[nn.Module], *_: Any) -> None:
            collecting.collect(models, writes(accelerator))

        accelerator.register_save_state_pre_hook(collect)

    def _apply_shards(
        self, accelerator: Accelerator, group: ProcessGroupSmdp, options: Mapping[str, Any]
    ) -> None:
        """Makes `prepare()` shard the parameters of models, and give the shards to optimizers."""
        if accelerator.mixed_precision == "fp16":
            raise ValueError(
                "[smdp] DataParallel: shard_parameters and mixed_precision='fp16' cannot be used together,"
                " because ranks would scale the loss by what they find in their own shards. Use 'bf16'."
            )
        options_of_ddp = _options_of(accelerator)
        shards = ShardedModels(options, group, self._memory.dtype)
        shards.change(accelerator)
        plain, prepare_optimizer = accelerator.prepare_model, accelerator.prepare_optimizer
        prepare_all = accelerator.prepare
        beside: list[Optimizer] = []  # the optimizers that prepare() gets with the model

        def prepare(*objects: Any, **options: Any) -> Any:
            beside[:] = [one for one in objects if isinstance(one, Optimizer)]
            try:
                return prepare_all(*objects, **options)
            finally:
                beside.clear()

        def prepare_model(
            model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
        ) -> nn.Module:
            if evaluation_mode or shards.wrapper_of(model) is not None:
                return plain(model, device_placement, evaluation_mode)
            prepared = plain(model, device_placement, evaluation_mode=True)
            self._memory.change(prepared, is_sharded=True)
            return shards.shard(prepared, beside, **options_of_ddp)

        def prepare_any_optimizer(optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
            if getattr(optimizer, "_is_accelerate_prepared", False):
                return prepare_optimizer(optimizer, device_placement)
            shards.gather_states(optimizer)
            return prepare_optimizer(optimizer, device_placement=False)

        accelerator.prepare = prepare
        accelerator.prepare_model = prepare_model
        accelerator.prepare_optimizer = prepare_any_optimizer
        accelerator.register_save_state_pre_hook(lambda *_: shards.collect(writes(accelerator)))


def _options_of(accelerator: Accelerator) -> dict[str, Any]:
    """Returns the arguments of ShardedDataParallel that the Accelerator's options for DDP ask for.

    Raises:
        ValueError: Shards do not support an option.
    """
    plain = DistributedDataParallelKwargs()
    asked = accelerator.ddp_handler or plain
    for option, is_set, reason in (
        (
            f"comm_hook={asked.comm_hook.value!r}",
            asked.comm_hook != plain.comm_hook,
            "shards travel uncompressed. Use shard_optimizer in place of shard_parameters",
        ),
        (
            f"bucket_cap_mb={asked.bucket_cap_mb!r}",
            asked.bucket_cap_mb != plain.bucket_cap_mb,
            "gradients are sent unit by unit, not in buckets. Leave bucket_cap_mb out",
        ),
        (
            "static_graph=True",
            asked.static_graph,
            "units are gathered by hooks that do not depend on a graph. Leave static_graph out",
        ),
        (
            "even_batches=False",
            accelerator.even_batches is False,
            "ranks without a batch could not gather parameters for the others. Leave even_batches out",
        ),
    ):
        if is_set:
            raise ValueError(
                f"[smdp] DataParallel: shard_parameters and {option} cannot be used together, because"
                f" {reason}."
            )
    return {
        "unused_parameters": bool(asked.find_unused_parameters),
        "broadcast_buffers": bool(asked.broadcast_buffers),
    }
