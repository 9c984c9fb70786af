"""smdp, through torch.distributed."""

from __future__ import annotations

import importlib

from smdp.cli.bench.peers.torch_group import TorchGroup


class SmdpTorch(TorchGroup):
    """The smdp backend."""

    def __init__(self, rank: int, ranks: int) -> None:
        importlib.import_module("smdp.torch")
        super().__init__("smdp-torch", rank, ranks, "smdp")
