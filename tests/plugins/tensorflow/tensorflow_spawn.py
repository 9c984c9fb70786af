"""Run a test function on several real processes with smdp.tensorflow.

As a script this file is one of those processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
from spawn import free_port, load, run_script


def run(
    function: Callable[[], None],
    size: int = 2,
    *,
    timeout: float = 100.0,
    env: Mapping[str, str] | None = None,
    exits: Mapping[int, int] | None = None,
    init: bool = True,
    hosts: Sequence[int] | None = None,
) -> list[str]:
    """See run_script(). init: whether to call init() before the function."""
    port = free_port()
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "SMDP_MASTER_ADDR": "127.0.0.1",
        "SMDP_MASTER_PORT": port,
        "SMDP_SECRET": "test",
        **(env or {}),
    }
    return run_script(
        __file__,
        function,
        ["init" if init else ""],
        size,
        timeout=timeout,
        env=variables,
        exits=exits,
        hosts=hosts,
        modules=["tensorflow", "pytest"],
    )


def _main(path: str, name: str, init: str) -> None:
    import tensorflow as tf

    import smdp.tensorflow as sdp

    tf.config.threading.set_intra_op_parallelism_threads(1)
    function = load(path, name)
    if init:
        sdp.init(
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            timeout=float(os.environ.get("SMDP_TEST_TIMEOUT", "60")),
        )
    function()
    if init:
        sdp.shutdown()


if __name__ == "__main__":
    _main(*sys.argv[1:])
