"""Ray Train: a real local cluster with two workers, and the examples of docs/ray.md on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.train")
from job import SCRIPT, clean, run

pytestmark = pytest.mark.timeout(500)  # Ray starts a dozen processes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


class Driver:
    """A program that starts its own local cluster; with its output as it comes."""

    def __init__(self, home: Path, *words: str) -> None:
        # Ray keeps results and a token at home.
        environ = clean(HOME=str(home), RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
        self.process = subprocess.Popen(
            [sys.executable, *words],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        # pytest's own deadline cannot end a read.
        self.timer = threading.Timer(450, self.stop)
        self.timer.start()

    def read(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            yield line

    def wait(self) -> str:
        """Read to the end, and give all of it."""
        for _ in self.read():
            pass
        self.process.wait()
        return self.text

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def stop(self) -> None:
        self.timer.cancel()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_worker(self, rank: int) -> None:
        found = re.findall(rf"pid=(\d+)\) world_rank={rank},", self.text)
        os.kill(int(found[-1]), signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start(*words: str) -> Driver:
        drivers.append(Driver(tmp_path, *words))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.stop()
        with driver.process:
            pass  # its pipe is closed, and its end waited for


def test_the_script_unchanged(start: Callable[..., Driver], loss: str) -> None:
    driver = start(str(EXAMPLES / "ray_train.py"), "--workers", "2", SCRIPT)
    text = driver.wait()
    assert driver.process.returncode == 0, text
    assert f"ranks=2 {loss}" in text
    assert "world_rank=1," in text


def test_a_lost_worker_is_named_and_training_goes_on(start: Callable[..., Driver], tmp_path: Path) -> None:
    epochs = 12
    words = ["--epochs", str(epochs), "--storage", str(tmp_path / "results")]
    driver = start(str(EXAMPLES / "ray_checkpoints.py"), *words)
    is_killed = False
    for line in driver.read():
        if "epochs=4 " in line and not is_killed:
            driver.kill_worker(1)
            is_killed = True
    driver.process.wait()
    assert is_killed and driver.process.returncode == 0, driver.text
    assert "[Rank 1 Error Snippet]" in driver.text
    again = re.search(r"goes on after (\d+) epochs", driver.text)
    assert again is not None and 1 <= int(again[1]) < epochs
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); from ray_checkpoints import *\n"
        "network = make_network(); optimizer = make_optimizer(network)\n"
        f"for epoch in range({epochs}): loss = train_epoch(network, optimizer, epoch)\n"
        f"print(f'epochs={epochs} loss={{loss:.6f}}')"
    )
    alone = run([sys.executable, "-c", code])
    assert alone.returncode == 0, alone.stdout
    assert alone.stdout.splitlines()[-1] in driver.text
