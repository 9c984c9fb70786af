"""Real ranks: processes that run a script, without any launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

PROLOGUE = """
import os, signal, sys, time
import numpy as np
import smdp

def joined(**options):
    return smdp.init(**{"timeout": 30, **options})

def report(body):
    start = time.monotonic()
    try:
        body()
    except Exception as error:
        print(f"after {time.monotonic() - start:.2f} s {type(error).__name__}: {error}", flush=True)
    else:
        print("no error", flush=True)
"""


@dataclass
class Rank:
    """One process of a job."""

    rank: int
    process: subprocess.Popen[str]
    output: str = ""

    def finish(self, seconds: float) -> int:
        self.output += self.process.communicate(timeout=seconds)[0]
        return self.process.returncode


Job = Callable[..., list[Rank]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Start a job: job(3, "code"); hosts=[0, 0, 1] puts rank 2 on another "host", reached over TCP."""
    started: list[Rank] = []

    def start(
        size: int,
        code: str,
        *,
        hosts: list[int] | None = None,
        environ: dict[str, str] | None = None,
        own: dict[int, dict[str, str]] | None = None,
        ranks: list[int] | None = None,
        port: int | None = None,
    ) -> list[Rank]:
        script = tmp_path / "train.py"
        script.write_text(PROLOGUE + code)
        port = port or free_port()
        job = []
        for rank in range(size) if ranks is None else ranks:
            variables = {
                **{k: v for k, v in os.environ.items() if not k.startswith("SMDP_")},
                "SMDP_RANK": str(rank),
                "SMDP_WORLD_SIZE": str(size),
                "SMDP_MASTER_ADDR": "127.0.0.1",
                "SMDP_MASTER_PORT": str(port),
                "SMDP_SECRET": "the job's",
                "SMDP_INIT_TIMEOUT": "20",
                **(environ or {}),
                **(own or {}).get(rank, {}),
            }
            if hosts is not None:
                variables["SMDP_HOST_ID"] = f"host{hosts[rank]}"
            process = subprocess.Popen(
                [sys.executable, str(script)],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                # Where the tests run in the background, SIGINT is ignored, and ranks would inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            job.append(Rank(rank, process))
        started.extend(job)
        return job

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        if one.process.stdout is not None and not one.process.stdout.closed:
            one.process.communicate()


def finish_all(ranks: list[Rank], seconds: float = 40.0) -> None:
    """Waits for all; every one must end well."""
    end = time.monotonic() + seconds
    codes = [rank.finish(max(0.1, end - time.monotonic())) for rank in ranks]
    assert codes == [0] * len(ranks), "\n".join(f"rank {r.rank}: {r.output}" for r in ranks)


@pytest.fixture
def finish() -> Callable[..., None]:
    return finish_all
