"""Run a test function on several real processes as torchrun would start them.

As a script this file is one of those processes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
from spawn import free_port, load, run_script

# Not smdp.transformers, which changes classes of transformers when it is imported.
_MODULES = [
    "torch.distributed",
    "torch._dynamo",
    "smdp.torch.model_parallel",
    "transformers.trainer",
    "pytest",
]
if importlib.util.find_spec("lightning") is not None:
    _MODULES.append("lightning.pytorch")


def run(
    function: Callable[[], Any],
    size: int = 2,
    *,
    timeout: float = 110.0,
    env: Mapping[str, str] | None = None,
    hosts: Sequence[int] | None = None,
    exits: Mapping[int, int] | None = None,
) -> list[Any]:
    """See run_script(); gives what the function returned on each rank, through JSON.

    No rank sees a GPU, unless `env` has CUDA_VISIBLE_DEVICES.

    Of ranks that are expected to fail, what they printed.
    """
    port = free_port()
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    variables = {**hidden, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(env or {})}
    outputs = run_script(
        __file__,
        function,
        [],
        size,
        timeout=timeout,
        env=variables,
        exits=exits,
        hosts=hosts,
        modules=_MODULES,
    )
    return [
        output if rank in (exits or {}) else json.loads(output.rsplit("RESULT ", 1)[1].splitlines()[0])
        for rank, output in enumerate(outputs)
    ]


def _main(path: str, name: str) -> None:
    import torch

    torch.set_num_threads(1)
    if os.environ["WORLD_SIZE"] == "1":  # nobody has launched it
        for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[variable]
    else:
        os.environ["LOCAL_RANK"] = os.environ["RANK"]
        os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    result = load(path, name)()
    if torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "gloo":  # it fails where another rank ends while it connects
            torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    print(f"\nRESULT {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
