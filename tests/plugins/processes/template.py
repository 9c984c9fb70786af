"""A process that has imported what ranks need, and forks one for each request: importing torch takes seconds.

As a script this file is that process: it reads requests from its standard input, a JSON object a line, and
answers each with its number and the id of the new process. A line {"pid": ..., "status": ...} follows when
that one ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

# Read when a module is imported: such a rank needs a process of its own.
_IMPORT_TIME = ("PYTHON", "TORCH", "OMP_", "LD_", "HF_", "ACCELERATE_", "SM_", "SMDP_COMPAT", "TF_", "KERAS_")


class Template:
    """Starts it.

    Args:
        modules: What it imports.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        self._ended: dict[int, int] = {}
        self._requests = 0
        self._line = b""

    @staticmethod
    def suits(env: Mapping[str, str]) -> bool:
        """Tell whether these variables, beside those of this process, work after the imports."""
        return not any(name.startswith(_IMPORT_TIME) for name in env)

    def start(
        self, words: Sequence[str], env: Mapping[str, str], log: str, folder: str | None = None
    ) -> Forked:
        """Run a script in a new process.

        Args:
            words: The script, and its arguments.
            env: All variables.
            log: The file that gets what it prints.
            folder: The working directory. None: the one of this process.
        """
        assert self._process.stdin is not None
        self._requests += 1
        rank = {"words": list(words), "env": dict(env), "log": log, "folder": folder}
        self._process.stdin.write(json.dumps({"number": self._requests, "rank": rank}).encode() + b"\n")
        self._process.stdin.flush()
        while (answer := self._read()).get("number") != self._requests:
            self._note(answer)
        self._ended.pop(answer["pid"], None)  # the system uses the ids of ended processes again
        return Forked(self, answer["pid"])

    def status(self, pid: int) -> int | None:
        """Give the exit code of a process, negative for a signal; None while it runs."""
        assert self._process.stdout is not None
        while pid not in self._ended and select.select([self._process.stdout], [], [], 0)[0]:
            self._note(self._read())
        return self._ended.get(pid)

    def _note(self, answer: dict[str, int]) -> None:
        if "status" in answer:
            self._ended[answer["pid"]] = answer["status"]
        else:  # a test was ended while it waited for this process
            os.kill(answer["pid"], 9)

    def _read(self) -> dict[str, int]:
        # One byte after the other, so that select() knows of all that is there.
        assert self._process.stdout is not None
        while not self._line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            if not byte:
                raise RuntimeError(f"the process that forks ranks has ended: {self._process.wait()}")
            self._line += byte
        line, self._line = self._line, b""
        found: dict[str, int] = json.loads(line)
        return found


class Forked:
    """A process, as far as tests use subprocess.Popen's names.

    Args:
        template: What has forked it.
        pid: Its id.
    """

    def __init__(self, template: Template, pid: int) -> None:
        self.pid = pid
        self._template = template

    def poll(self) -> int | None:
        """Give its exit code, or None while it runs."""
        return self._template.status(self.pid)

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, 9)

    def wait(self) -> None:
        """Wait for its end."""
        while self.poll() is None:
            select.select([], [], [], 0.01)


def _serve() -> None:
    """Fork until nobody asks any more."""
    unread = b""
    while True:
        if select.select([0], [], [], 0.01)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *requests, unread = (unread + data).split(b"\n")
            for request in requests:
                _fork(**json.loads(request))
        while _children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            _children.discard(pid)
            _answer({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


_children: set[int] = set()


def _fork(number: int, rank: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(**rank)
    _children.add(pid)
    _answer({"pid": pid, "number": number})


def _answer(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _become(words: list[str], env: dict[str, str], log: str, folder: str | None) -> NoReturn:
    if folder is not None:
        os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    _end()


def _end() -> NoReturn:
    """Ends this process as Python does, but leaves the memory to the system.

    Python would look at every object of the imported modules, which takes longer than most tests.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # At its end a process looks at every object: a child would copy all pages of this one for it.
    gc.collect()
    gc.freeze()
    _serve()
