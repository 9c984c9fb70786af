"""gloo, through torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from smdp.cli.bench.peers.torch_group import TorchGroup

_SPLIT_FROM = 1 << 16  # elements below which one context is faster than several


class Gloo(TorchGroup):
    """gloo with one or several contexts.

    torch creates one context per listed interface, and a name may be repeated. Since an operation uses a
    single context, large all_reduce and broadcast operations are cut into as many concurrent operations.
    """

    def __init__(self, rank: int, ranks: int, *, contexts: int = 1) -> None:
        self._contexts = contexts
        before = os.environ.get("GLOO_SOCKET_IFNAME")
        if contexts > 1:
            interface = (before or "lo").split(",")[0]
            os.environ["GLOO_SOCKET_IFNAME"] = ",".join([interface] * contexts)
        try:
            super().__init__("gloo" if contexts == 1 else f"gloo{contexts}", rank, ranks, "gloo")
        finally:
            if contexts > 1:
                del os.environ["GLOO_SOCKET_IFNAME"]
                if before is not None:
                    os.environ["GLOO_SOCKET_IFNAME"] = before

    def _call(self, operation: str, source: Any, result: Any) -> Callable[[], object]:
        is_cut = operation in ("all_reduce", "broadcast") and source.numel() >= _SPLIT_FROM
        if self._contexts == 1 or not is_cut:
            return super()._call(operation, source, result)
        dist, group, parts = self._dist, self._group, source.chunk(self._contexts)

        def run() -> None:
            if operation == "all_reduce":
                works = [dist.all_reduce(part, group=group, async_op=True) for part in parts]
            else:
                works = [dist.broadcast(part, 0, group=group, async_op=True) for part in parts]
            for work in works:
                work.wait()

        return run
