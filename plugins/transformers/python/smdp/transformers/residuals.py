"""Saves the residuals of gradient compression in the Trainer's checkpoints, in one file per rank."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from transformers.utils import logging

from smdp.torch.plugin_support import DistributedDataParallel, on_every_rank

_log = logging.get_logger(__name__)


def save_residuals(model: DistributedDataParallel, folder: str) -> None:
    """Writes this rank's residuals, if there are any. All ranks must call it."""
    state = model.residuals()
    if state:
        os.makedirs(folder, exist_ok=True)
        torch.save(state, _path(folder))


def load_residuals(model: DistributedDataParallel, folder: str) -> None:
    """Restores the residuals on all ranks, or on none if some rank has none that fit; rank 0 then warns."""
    own = model.residuals()
    if not own:
        return
    state: dict[str, Any] = {}

    def read() -> str:
        path = _path(folder)
        if not os.path.exists(path):
            return f"{path} is missing"
        try:
            state.update(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # noqa: BLE001 - torch may raise any error for a damaged file
            return f"{path} cannot be read ({error})"
        of = state.get("of")
        return "" if of == own["of"] else f"{path} belongs to {of}, but this run is {own['of']}"

    reasons = [reason for reason in on_every_rank(read) if reason]
    if not reasons:
        model.load_residuals(state)
    elif dist.get_rank() == 0:
        _log.warning("[smdp] compression starts again without residuals: %s", reasons[0])


def _path(folder: str) -> str:
    return os.path.join(folder, f"gradient_residuals_{dist.get_rank()}.pth")
