"""LightningModules with a model that smdp.torch.tensor_parallel() has divided in configure_model()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from smdp.torch import clip_grad_norm_
from smdp.torch.plugin_support import mesh_of_slices


def sampler_options(parameters: Iterable[Tensor]) -> dict[str, Any] | None:
    """Returns the arguments of DistributedSampler, by which ranks that share a model read the same batches.

    Returns None if no parameter is divided.
    """
    mesh = mesh_of_slices(parameters)
    return None if mesh is None else {"num_replicas": mesh.replicas, "rank": mesh.replica}


def check_saving(parameters: Iterable[Tensor], trainer: Trainer | None = None) -> None:
    """Checks that no checkpoint of Lightning is made of a divided model.

    Args:
        parameters: The parameters of the model.
        trainer: If passed, checkpoints are only an error if this Trainer makes them by itself.

    Raises:
        RuntimeError: One is made.
    """
    if mesh_of_slices(parameters) is not None and (trainer is None or trainer.checkpoint_callbacks):
        raise RuntimeError(
            "[smdp] SmdpStrategy: a checkpoint of Lightning would have only one rank's slices of a divided"
            " model. Use Trainer(enable_checkpointing=False), and save with"
            " smdp.torch.model_parallel.checkpoint.save(path, model) on all ranks."
        )


def clip_by_norm(optimizer: Optimizer, clip_val: float) -> None:
    """Clips by the norm over all slices. Replaces clip_grad_by_norm() of Lightning's precision plugin."""
    if clip_val > 0:
        clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], clip_val)
