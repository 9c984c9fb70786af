"""Runs small jobs, in each of which one rank lacks something, and writes how their ranks ended.

Started under fail_call.c, with the library's path as argument and a JSON list of tries on standard input.
Ranks are forked from this process, so that Python and NumPy are loaded once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import smdp
from smdp import _core
from smdp._buffers import view

LIMIT_S = 15.0
_KINDS = ("error", "counts", "has_failed")


def step(group: smdp.Group) -> None:
    """What a step may do: shared memory, long and short messages, in the caller's thread and not."""
    everyone = group.size
    for elements in (3, 200_000):
        assert (group.all_reduce(np.ones(elements, np.float32)) == everyone).all()
        assert (group.all_reduce(np.ones(elements, np.float32), async_op=True).wait(10) == everyone).all()
    if group.rank < 2 and group.size > 1:
        data = np.arange(100_000, dtype=np.float32)
        handle = group.send(data, 1 - group.rank, async_op=True)
        received = np.empty_like(data)
        group.recv(received, 1 - group.rank)
        assert (received == data).all()
        handle.wait(10)
    group.barrier()


def gradients(group: smdp.Group) -> None:
    """What a data-parallel model makes, and a step of it."""
    values = np.ones(1000, np.float32)
    data = view(values, writes=True, what="the gradient")
    reducer = _core.GradientReducer(
        group.core, [("w", data.elements, data.dtype, "1000")], compression="topk"
    )
    reducer.ready(0, data.pointer)
    reducer.finish()
    reducer.wait()


def once_per_host(group: smdp.Group) -> None:
    """What ranks share that keep parameters once per host."""
    memory = _core.HostMemory(group.core, 1 << 16)
    memory.await_host()


def job() -> None:
    world = smdp.init(timeout=10)
    step(world)
    part = world.split(0)  # all ranks again, in a group that shares with the first what it can
    step(part)
    other = world.split(int(world.rank != 1))
    step(other)
    gradients(world)
    once_per_host(world)
    for group in (other, part):
        group.shutdown()
    smdp.shutdown()


def rank(number: int, library: Any, one: dict[str, Any], port: int, report: TextIO) -> None:
    """One rank of a job, in a forked process."""
    os.environ.update(
        SMDP_RANK=str(number),
        SMDP_WORLD_SIZE=str(len(one["hosts"])),
        SMDP_MASTER_ADDR="127.0.0.1",
        SMDP_MASTER_PORT=str(port),
        SMDP_SECRET="a job",
        SMDP_INIT_TIMEOUT="30",
        SMDP_HOST_ID=f"host{one['hosts'][number]}",
        SMDP_TRACE=str(Path(report.name).parent / "trace"),
    )
    is_short = number == one["rank"]
    library.fail_call_arm(one["call"].encode(), one["nth"] if is_short else 0, one["error"])
    if is_short and one["files"] is not None:
        limit = len(os.listdir("/proc/self/fd")) - 1 + one["files"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    error = ""
    try:
        job()
    except Exception as failure:  # noqa: BLE001  whatever ends this rank
        error = f"{type(failure).__name__}: {failure}"
        _core.shutdown_all(f"it raised {error}")  # as the end of a program does
    counts = {
        library.fail_call_name(i).decode(): library.fail_call_count(i)
        for i in range(library.fail_call_size())
    }
    values = (error, counts, bool(library.fail_call_has_failed()))
    report.write(json.dumps(dict(zip(_KINDS, values, strict=True))))


def run(one: dict[str, Any], library: Any) -> list[dict[str, Any] | None]:
    """Runs one job. Gives what its ranks report, None of one that did not end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / str(number) for number in range(len(one["hosts"]))]
        children = []
        for number, report in enumerate(reports):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    with open(os.devnull, "w") as quiet:  # of warnings, which are not looked at
                        os.dup2(quiet.fileno(), 2)
                    with report.open("w") as file:  # before there is none left
                        rank(number, library, one, port, file)
                os._exit(0)
            children.append(child)
        end = time.monotonic() + LIMIT_S
        while children and time.monotonic() < end:
            children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
            time.sleep(0.005)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return [json.loads(text) if (text := report.read_text()) else None for report in reports]


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.fail_call_name.restype = ctypes.c_char_p
    library.fail_call_count.restype = ctypes.c_long
    library.fail_call_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    library.fail_call_find()
    for one in json.load(sys.stdin):
        print(json.dumps({"try": one, "ranks": run(one, library)}), flush=True)


if __name__ == "__main__":
    main()
