"""Offloads activations as the configuration says."""

from __future__ import annotations

import logging

import torch
from torch import nn

from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.offload.offload_activations import has_blocks, offload_activations

_log = logging.getLogger(__name__)


def offload_place(configuration: Configuration, model: nn.Module, device: torch.device | None) -> str | None:
    """Returns where activations go, as `offload=` of `smdp.torch.pipeline()`; None: they stay in memory.

    Args:
        configuration: The configuration of the job.
        model: The model.
        device: The device for a model that has no values yet; None: the CPU.
    """
    if not configuration.offload_activations:
        return None
    real = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
    if next(real, device or torch.device("cpu")).type != "cpu":
        return "host"
    if configuration.offload_directory is not None:
        return f"disk:{configuration.offload_directory}"
    _log.warning(
        "[smdp] offload_activations has no effect: the model is on the CPU, and offload_directory does not"
        " name a directory on a local disk"
    )
    return None


def offload_uncut(configuration: Configuration, model: nn.Module) -> None:
    """Offloads the activations of a model that is not cut.

    Raises:
        ValueError: The directory cannot be used.
    """
    place = offload_place(configuration, model, None)
    if place is None:
        return
    if has_blocks(model):
        offload_activations(model, place, configuration.activation_loading_horizon)
    else:
        _log.warning("[smdp] offload_activations has no effect: the model has no ModuleList or Sequential")
