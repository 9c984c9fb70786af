"""Batch norm over the global batch for `Trainer(sync_batchnorm=True)`, on any device."""

from __future__ import annotations

from lightning.pytorch.plugins import LayerSync
from torch import nn

from smdp.torch.plugin_support import SyncBatchNorm


class SyncBatchNorms(LayerSync):
    """Replaces batch norms with smdp.torch.SyncBatchNorm while the model is fitted.

    Both share parameters and statistics, so nothing needs to be copied back.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []

    def apply(self, model: nn.Module) -> nn.Module:
        """Replaces the batch norms of a model."""
        before = [
            (parent, name, child) for parent in model.modules() for name, child in parent.named_children()
        ]
        converted = SyncBatchNorm.convert(model)
        self._replaced = [one for one in before if getattr(one[0], one[1]) is not one[2]]
        return converted

    def revert(self, model: nn.Module) -> nn.Module:
        """Restores the model's own batch norms."""
        for parent, name, child in self._replaced:
            child.train(getattr(parent, name).training)
            setattr(parent, name, child)
        self._replaced = []
        return model
