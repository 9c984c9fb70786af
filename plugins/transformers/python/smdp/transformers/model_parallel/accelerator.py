"""Adapts the Trainer's Accelerator to a pipelined model, whose ranks share batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import convert_outputs_to_fp32, recursively_apply
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from smdp.placement import Placement
from smdp.torch import GradScaler, PipelinedModule, clip_grad_norm_


def share_batches(trainer: Trainer, stages: int, tensor: int) -> None:
    """Makes the ranks of a pipeline read the same batches, and gathers from one rank of each pipeline.

    Args:
        trainer: The Trainer, whose Accelerator has just been created.
        stages: The number of stages of a pipeline.
        tensor: The number of ranks of a stage.
    """
    accelerator = trainer.accelerator
    placement = Placement.of_world(accelerator.num_processes, pipeline=stages, tensor=tensor)
    replica = placement.coordinates(accelerator.process_index).rdp
    replicas = placement.data
    group = _group_of_replicas(placement) if replicas > 1 else None
    prepare = accelerator.prepare_data_loader

    def prepare_by_replica(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        if getattr(loader, "_is_accelerate_prepared", False):
            return prepare(loader, *args, **kwargs)
        seed_worker = loader.worker_init_fn
        if "rank" in getattr(seed_worker, "keywords", {}):
            # With different seeds, the random transforms of two stages would differ.
            seed_worker.keywords["rank"] = replica
        prepared = prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=replicas,
            process_index=replica,
            split_batches=accelerator.split_batches,
            put_on_device=accelerator.device_placement,
            rng_types=accelerator.rng_types.copy(),
            dispatch_batches=False,
            even_batches=accelerator.even_batches,
            use_seedable_sampler=accelerator.use_seedable_sampler,
            data_seed=accelerator.dataloader_config.data_seed,
            non_blocking=accelerator.non_blocking,
            use_stateful_dataloader=accelerator.use_stateful_dataloader,
        )
        accelerator._dataloaders.append(prepared)
        return prepared

    def gather(tree: Any) -> Any:
        return recursively_apply(gathered, tree, error_on_other_type=True)

    def gathered(tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor.contiguous()
        if group is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(replicas)]
        dist.all_gather(parts, tensor, group=group)
        return torch.cat(parts)

    accelerator.prepare_data_loader = prepare_by_replica
    accelerator.gather = gather


def take_over(trainer: Trainer, pipe: PipelinedModule) -> None:
    """Directs the Accelerator's methods to the pipelined model."""
    accelerator = trainer.accelerator
    # The methods of the class, because those of the object may belong to an earlier pipelined model.
    plain = type(accelerator)

    def prepare_model(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return model if model is pipe.module else plain.prepare_model(accelerator, model, *args, **kwargs)

    def unwrap_model(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        inner = model.module if isinstance(model, PipelinedModule) else model
        return plain.unwrap_model(accelerator, inner, *args, **kwargs)

    def clip(parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        accelerator.unscale_gradients()
        # A rank may have no trained parameters.
        return clip_grad_norm_(list(parameters) or pipe, max_norm, norm_type)

    accelerator.prepare_model = prepare_model
    accelerator.unwrap_model = unwrap_model
    accelerator.clip_grad_norm_ = clip
    accelerator.backward = lambda loss, **_: pipe.backward(loss)
    if accelerator.native_amp:
        pipe.forward = _in_mixed_precision(accelerator, pipe.forward)  # type: ignore[method-assign]
    if accelerator.scaler is not None:
        accelerator.scaler = _agreed_upon(accelerator.scaler, pipe)


def _in_mixed_precision(accelerator: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Limits autocast to the model. Losses are computed outside it from outputs in fp32."""

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with accelerator.autocast():
            return forward(*args, **kwargs)

    return convert_outputs_to_fp32(run)  # type: ignore[no-any-return]


def _group_of_replicas(placement: Placement) -> Any:
    """Creates a group of the replicas of each stage, and returns this rank's group."""
    groups = {ranks: dist.new_group(list(ranks)) for ranks in placement.groups("rdp")}
    return next(group for ranks, group in groups.items() if dist.get_rank() in ranks)


def _agreed_upon(scaler: torch.amp.GradScaler, pipe: PipelinedModule) -> GradScaler:
    return GradScaler(
        pipe,
        pipe.device.type,
        init_scale=scaler._init_scale,
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
        enabled=scaler.is_enabled(),
    )
