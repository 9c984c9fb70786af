"""smdp's gradient reducer and sharded optimizers for scripts with an Accelerator."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from smdp.accelerate.memory_options import MemoryOptions
from smdp.accelerate.sharded_optimizers import ShardedOptimizers
from smdp.accelerate.wrapped_models import PreparedModels, wrap_model
from smdp.torch.plugin_support import ProcessGroupSmdp, asked_scope, check_reducer_options


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
            ("host"), as smdp chooses ("auto"), or on every rank (False). See `smdp.torch.ShardedOptimizer`.
        recompute: Which activations backward computes again; a policy of
            `smdp.torch.checkpoint_activations()`. Default: none.
        offload: Where activations wait for backward, "disk:/DIRECTORY" or "host"; see
            `smdp.torch.offload_activations()`. Default: in memory.
        precision: "bf16" or "fp16": parameters and gradients have 16 bits, the optimizer keeps masters; see
            `smdp.torch.MixedPrecision`. Default: the dtype of the model.

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
        shard_optimizer: bool | str = False,
        recompute: Any = None,
        offload: str | None = None,
        precision: str | None = None,
    ) -> None:
        check_reducer_options(
            "DataParallel", compression, bucket_cap_mb, topk_ratio=topk_ratio, topk_momentum=topk_momentum
        )
        self._scope = asked_scope("DataParallel", shard_optimizer)
        self._memory = MemoryOptions("DataParallel", recompute, offload, precision)
        self._options = {
            "compression": compression,
            "topk_ratio": topk_ratio,
            "topk_momentum": topk_momentum,
            **({} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}),
        }

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
        models = PreparedModels()
        sharded = None
        if group is not None and self._scope is not None:
            sharded = ShardedOptimizers(self._scope, models, self._memory.master_dtype)
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
            everywhere = accelerator.project_configuration.save_on_each_node
            writes = accelerator.is_local_main_process if everywhere else accelerator.is_main_process
            collecting.collect(models, writes)

        accelerator.register_save_state_pre_hook(collect)
