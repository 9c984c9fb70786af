"""Keeps a model's number of parameters when its layers are divided over ranks."""

from __future__ import annotations

from typing import Any

from torch import nn


def keep_number_of_parameters(model: Any) -> None:
    """Makes `model.num_parameters()` go on counting whole parameters, from which the Trainer computes FLOPs.

    Args:
        model: A model of transformers whose parameters are still whole. Other models stay as they are.
    """
    if not hasattr(model, "num_parameters"):
        return
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def num_parameters(only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        left_out = {
            f"{name}.weight"
            for name, module in model.named_modules()
            if exclude_embeddings and isinstance(module, nn.Embedding)
        }
        return sum(
            sizes.get(name, parameter.numel())
            for name, parameter in model.named_parameters()
            if name not in left_out and (parameter.requires_grad or not only_trainable)
        )

    model.num_parameters = num_parameters
