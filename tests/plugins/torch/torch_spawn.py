"""Run a test function on several real processes that form one group over smdp.

As a script this file is one of those processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
from spawn import load, run_script


def run(
    function: Callable[[], None],
    size: int = 2,
    *,
    timeout: float = 100.0,
    backend: str = "smdp",
    env: Mapping[str, str] | None = None,
    exits: Mapping[int, int] | None = None,
    init: bool = True,
    hosts: Sequence[int] | None = None,
) -> list[str]:
    """See run_script(). backend: what init_process_group is called with, if `init`."""
    return run_script(
        __file__,
        function,
        [backend if init else ""],
        size,
        timeout=timeout,
        env=env,
        exits=exits,
        hosts=hosts,
        modules=["torch.distributed.checkpoint", "torch._dynamo", "smdp.torch.model_parallel", "pytest"],
    )


def _main(path: str, name: str, backend: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    function = load(path, name)
    if backend:
        dist.init_process_group(
            backend,
            init_method=f"file://{os.environ['SMDP_TEST_STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=60),
        )
    function()
    if backend:
        dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
