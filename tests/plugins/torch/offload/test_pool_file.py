"""A pool file keeps bytes on a disk, within bounds, and leaves nothing behind."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from smdp.torch.offload.pool_file import Extent, Memory, PoolFile
from smdp.torch.offload.target import target_of

MIB = 1 << 20


@pytest.fixture
def pool(tmp_path: Path) -> PoolFile:
    return PoolFile(target_of(f"disk:{tmp_path}"))


def put(pool: PoolFile, values: torch.Tensor) -> Extent:
    extent = pool.extent(values.nbytes)
    pool.write(extent, [Memory(0, values.data_ptr(), values.nbytes, values)])
    return extent


def test_what_was_written_is_read(pool: PoolFile) -> None:
    given = [torch.randn(count) for count in (1, 1000, 3 * MIB)]
    extents = [put(pool, values) for values in given]
    reads = [pool.read(extent) for extent in extents]
    for values, extent, read in zip(given, extents, reads, strict=True):
        assert torch.equal(pool.wait(read).view(torch.float32), values)
        assert torch.equal(pool.mapped(extent).view(torch.float32), values)


def test_a_file_system_without_nameless_files_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    pool = PoolFile(target_of(f"disk:{tmp_path}"))
    values = torch.randn(1000)
    assert torch.equal(pool.wait(pool.read(put(pool, values))).view(torch.float32), values)
    assert list(tmp_path.iterdir()) == []
    assert not pool.is_direct


def test_space_is_used_again(pool: PoolFile) -> None:
    values = torch.randn(5 * MIB)
    for _ in range(8):
        extents = [put(pool, values), put(pool, values[: MIB // 2])]
        for extent in extents:
            assert extent.written is not None
            pool.wait(extent.written)
        assert pool.used == 22 * MIB
        size = pool.size
        del extents, extent
        assert pool.used == 0
    assert pool.size == size <= 64 * MIB


def test_a_full_pool_tells_what_it_needs_and_has(tmp_path: Path) -> None:
    pool = PoolFile(target_of(f"disk:{tmp_path}?limit=8M"))
    held = pool.extent(5 * MIB)
    told = f"offload to {re.escape(str(tmp_path))} needs {4 * MIB} more bytes, and {3 * MIB} are there"
    with pytest.raises(RuntimeError, match=told):
        pool.extent(4 * MIB)
    del held
    assert pool.extent(8 * MIB).length == 8 * MIB


SMALL_DISK = """
import resource, sys
from smdp.torch.offload.pool_file import PoolFile
from smdp.torch.offload.target import target_of
pool = PoolFile(target_of(f"disk:{sys.argv[1]}"))
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
held = pool.extent(5 << 20)
pool.extent(4 << 20)
"""


def test_a_disk_that_takes_no_more_tells_what_it_needs_and_has(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_DISK, tmp_path], capture_output=True, text=True)
    told = f"offload to {tmp_path} needs {4 * MIB} more bytes, and {3 * MIB} are there"
    assert told in done.stderr, done.stderr


KILLED = """
import os, signal, sys, torch
from smdp.torch.offload.pool_file import Memory, PoolFile
from smdp.torch.offload.target import target_of
pool = PoolFile(target_of(f"disk:{sys.argv[1]}"))
values = torch.ones(1 << 20)
pool.wait(pool.write(pool.extent(values.nbytes), [Memory(0, values.data_ptr(), values.nbytes, values)]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_killed_process(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("offload", "told"),
    [
        ("tape:/scratch", "offload = 'tape:/scratch' is not valid; allowed: \"disk:/DIRECTORY\""),
        ("disk:/tmp?limit=much", "is not valid; allowed"),
        ("disk:", "is not valid; allowed"),
        (None, "offload = None is not valid; allowed"),
    ],
)
def test_a_wrong_place_is_refused(offload: object, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        target_of(offload)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match=f"cannot create files in {re.escape(str(tmp_path))}"):
        PoolFile(target_of(f"disk:{tmp_path}"))


def test_a_missing_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="/no/such/place is not a directory on this host"):
        PoolFile(target_of("disk:/no/such/place"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_directory_that_takes_no_files_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot create (files|a file) in /proc"):
        PoolFile(target_of("disk:/proc"))


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_a_directory_in_memory_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pool = PoolFile(target_of("disk:/dev/shm"))
    assert "offload to /dev/shm: its file system, tmpfs, keeps files in memory" in caplog.text
    values = torch.randn(1000)
    assert torch.equal(pool.wait(pool.read(put(pool, values))).view(torch.float32), values)
