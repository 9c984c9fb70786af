"""Run a test function on several real processes, by a script that gets the function's file and name."""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from template import Template

# How long the others may take to fail as well once one process has failed.
_GRACE_S = 20.0


def free_port() -> str:
    """One that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def run_script(
    script: str,
    function: Callable[[], None],
    arguments: Sequence[str],
    size: int,
    *,
    timeout: float,
    env: Mapping[str, str] | None,
    exits: Mapping[int, int] | None,
    hosts: Sequence[int] | None,
    modules: Sequence[str] = (),
) -> list[str]:
    """Run `script FILE FUNCTION ARGUMENTS...` on `size` processes and wait for them.

    Args:
        script: The file to run; it calls load() on its first two arguments.
        function: Takes nothing; found again by its file and name.
        arguments: More for the script.
        size: Number of processes.
        timeout: Seconds after which all are killed.
        env: Variables besides those of this process.
        exits: Exit codes other than 0 that are expected, by rank (negative: a signal).
        hosts: The host of each rank; ranks of different ones talk TCP. None: all share one.
        modules: What all ranks import; once for all tests, where the variables allow it.

    Returns:
        What each rank printed.

    Raises:
        AssertionError: A process ended otherwise than expected; the message has the output of all.
    """
    expected = [0] * size
    for rank, code in (exits or {}).items():
        expected[rank] = code
    with tempfile.TemporaryDirectory() as folder:
        variables = [
            {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "SMDP_TEST_STORE": str(Path(folder, "store")),
                "SMDP_TEST_FOLDER": folder,
                "PYTHONUNBUFFERED": "1",
                **({} if hosts is None else {"SMDP_HOST_ID": f"host{hosts[rank]}"}),
                **(env or {}),
            }
            for rank in range(size)
        ]
        words = [script, function.__code__.co_filename, function.__name__, *arguments]
        # Both import before the first rank starts: ranks would else be apart by as long as that takes.
        are_forked = bool(modules) and Template.suits(env or {})
        templates = [template_of(tuple(modules), rank) for rank in range(min(size, 2) if are_forked else 0)]
        codes, outputs = run_ranks(words, variables, expected, templates=templates, timeout=timeout)
    if codes != expected:
        report = "\n".join(f"--- rank {rank} ---\n{text[-6000:]}" for rank, text in enumerate(outputs))
        raise AssertionError(
            f"{function.__name__}: exit codes {codes}, expected {expected} (None: killed)\n{report}"
        )
    return outputs


def run_ranks(
    words: Sequence[str],
    variables: Sequence[Mapping[str, str]],
    expected: Sequence[int],
    *,
    templates: Sequence[Template],
    timeout: float,
    folder: Path | None = None,
) -> tuple[list[int | None], list[str]]:
    """Run a script on one process per rank, and wait for them.

    Args:
        words: The script, and its arguments.
        variables: All variables of each rank.
        expected: The exit code of each rank. Once one has ended otherwise, the others have 20 s.
        templates: What forks the ranks, in turn. Without any, each is a new Python.
        timeout: Seconds after which all are killed.
        folder: The working directory of the ranks. None: the one of this process.

    Returns:
        The exit code of each rank, None where it was killed, and what each rank printed.
    """
    with tempfile.TemporaryDirectory() as place:
        logs = [Path(place, f"rank{rank}.log") for rank in range(len(variables))]
        processes: list[Any] = []
        for rank, environ in enumerate(variables):
            if templates:
                template = templates[rank % len(templates)]
                processes.append(template.start(words, environ, str(logs[rank]), folder and str(folder)))
                continue
            with logs[rank].open("wb") as log:
                command = [sys.executable, *words]
                processes.append(
                    subprocess.Popen(command, env=dict(environ), cwd=folder, stdout=log, stderr=log)
                )
        try:
            codes = _wait(processes, expected, timeout)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return codes, [log.read_text(errors="replace") for log in logs]


@functools.cache
def template_of(modules: tuple[str, ...], number: int) -> Template:
    """Give the process that has imported these modules; there may be several of them."""
    # Two of them, as sets of names have another order in each: what depends on it is found.
    return Template(modules)


def _wait(processes: list[Any], expected: Sequence[int], timeout: float) -> list[int | None]:
    deadline = time.monotonic() + timeout
    is_failing = False
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return codes
        pairs = zip(codes, expected, strict=True)
        if not is_failing and any(code not in (None, want) for code, want in pairs):
            is_failing = True
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(0.02)
    return [process.poll() for process in processes]


def load(path: str, name: str) -> Any:
    """The function that a process is to run."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).parent))
    spec.loader.exec_module(module)
    return getattr(module, name)
