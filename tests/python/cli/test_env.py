"""`smdp env`: complete, masked, and never in the way."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from smdp import _kernel_files
from smdp.cli import env, system

PARTS = [
    "smdp",
    "platform",
    "libraries",
    "cpu",
    "memory",
    "network",
    "fabric",
    "gpus",
    "launcher",
    "variables",
    "problems",
]


@pytest.mark.timeout(60)
def test_json_on_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "env", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SMDP_SECRET": "hush-hush", "SMDP_ALGORITM": "ring", "SMDP_THREADS": "many"},
    )
    found = json.loads(done.stdout)
    assert list(found) == PARTS
    assert "hush-hush" not in done.stdout
    assert found["variables"]["SMDP_SECRET"] == "***"
    assert any("SMDP_ALGORITHM?" in problem for problem in found["problems"])
    assert any("SMDP_THREADS='many'" in problem for problem in found["problems"])
    assert found["cpu"]["affinity"] >= 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        ({}, 0, ""),
        ({"SMDP_THREADS": "many"}, 1, "SMDP_THREADS='many'"),
        ({"SMDP_ALGORITM": "ring"}, 1, "did you mean SMDP_ALGORITHM?"),
        ({"SMDP_RANK": "5", "SMDP_WORLD_SIZE": "2"}, 1, "SMDP_RANK='5' is not valid; allowed: 0 to 1"),
        ({"SMDP_WORLD_SIZE": "2"}, 0, ""),
        (
            {"SMDP_FORCE_KERNEL": "avx2" if platform.machine() == "aarch64" else "neon"},
            1,
            "which this processor supports",
        ),
        ({"SMDP_TRACE": "/dev/null/here"}, 1, "SMDP_TRACE='/dev/null/here' is not valid"),
        ({"SMDP_MASTER_PORT": "70000"}, 1, "SMDP_MASTER_PORT='70000' is not valid; allowed: a port"),
        (
            {"SMDP_TENSORFLOW_OPS": "foo"},
            1,
            "SMDP_TENSORFLOW_OPS='foo' is not valid; allowed: native, python",
        ),
        ({"SMDP_STALL_TIME": "2147483647"}, 1, "SMDP_STALL_TIME='2147483647' is not valid"),
    ],
)
def test_check_is_for_health_checks(variables: dict[str, str], code: int, message: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SMDP_")}
    command = [sys.executable, "-m", "smdp", "env", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, env={**clean, **variables})
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr and bool(done.stderr) == bool(code)


@pytest.mark.timeout(60)
def test_check_finds_a_compiled_part_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['smdp._core'] = None\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "smdp", "env", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 1
    assert "the compiled extension cannot be loaded (ModuleNotFoundError" in done.stderr


def test_text_has_every_part() -> None:
    lines = env.report(environ={}).splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == PARTS


def test_the_launcher_and_its_variables_are_shown() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5"}
    with mock.patch.dict(os.environ, environ, clear=True):
        launcher = env.collect(os.environ)["launcher"]
    assert isinstance(launcher, dict)
    assert launcher["detected"] == "torchrun"
    assert launcher["rank"] == "1 of 2, local rank -"
    assert launcher["master"] == "h:6"
    assert launcher["WORLD_SIZE"] == "2"


def test_a_wrong_launcher_variable_is_reported_not_raised() -> None:
    launcher = env.collect({"SMDP_RANK": "x", "SMDP_WORLD_SIZE": "2"})["launcher"]
    assert isinstance(launcher, dict)
    assert "SMDP_RANK='x'" in launcher["error"]


def test_nothing_on_this_machine_works() -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("gone")

    with (
        mock.patch.object(Path, "read_text", fail),
        mock.patch.object(Path, "glob", fail),
        mock.patch("subprocess.run", fail),
        mock.patch("socket.if_nameindex", fail),
        mock.patch("os.statvfs", fail),
        mock.patch("platform.platform", fail),
    ):
        text = env.report(environ={})
    assert "not available (OSError: gone)" in text


def test_no_framework_is_imported() -> None:
    code = (
        "import sys, smdp.cli.env as e; e.report(); "
        "print([n for n in ('torch', 'tensorflow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "/proc/self/cgroup": "0::/a/b",
                "/sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "/sys/fs/cgroup/a/cpu.max": "400000 100000",
            },
            4.0,
        ),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/x",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cgroup_quota(files: dict[str, str], expected: float | None) -> None:
    with mock.patch.object(_kernel_files, "read_text", lambda path: files.get(str(path))):
        assert system.cgroup_quota() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/memory.max": "150000"}, "a/b/memory.max"),
        (
            {
                "/proc/self/cgroup": "0::/a/b",
                "/sys/fs/cgroup/a/b/memory.max": "max",
                "/sys/fs/cgroup/a/memory.max": "150000",
                "/sys/fs/cgroup/memory.max": "160000",
            },
            "a/memory.max",
        ),
        # A container that sees its own cgroup as the root.
        (
            {
                "/proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/x\n0::/",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "150000",
                "/sys/fs/cgroup/cpu/memory.limit_in_bytes": "1",
            },
            "memory/memory.limit_in_bytes",
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/a/b",
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "150000",
            },
            "memory/a/memory.limit_in_bytes",
        ),
        ({"/proc/self/cgroup": "4:memory:/", "/sys/fs/cgroup/memory/memory.max": "max"}, None),
        ({}, None),
    ],
)
def test_memory_limit(files: dict[str, str], expected: str | None) -> None:
    with mock.patch.object(_kernel_files, "read_text", lambda path: files.get(str(path))):
        limit = _kernel_files.memory_limit()
        assert system.memory()["cgroup_limit"] == (expected and 150000)
    assert (limit and (limit.bytes, str(limit.file))) == (expected and (150000, f"/sys/fs/cgroup/{expected}"))


def test_available_memory_is_what_the_cgroup_leaves() -> None:
    files = {"/proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB"}
    with mock.patch.object(_kernel_files, "read_text", lambda path: files.get(str(path))):
        assert _kernel_files.available_memory() == 500 << 10
        files["/proc/self/cgroup"] = "0::/a/b"
        files["/sys/fs/cgroup/a/memory.max"] = str(600 << 10)
        files["/sys/fs/cgroup/a/memory.current"] = str(300 << 10)
        files["/sys/fs/cgroup/a/memory.stat"] = f"anon 7\ninactive_file {50 << 10}"
        assert _kernel_files.available_memory() == 350 << 10
        # The smallest limit need not leave the least.
        files["/sys/fs/cgroup/memory.max"] = str(700 << 10)
        files["/sys/fs/cgroup/memory.current"] = str(500 << 10)
        assert _kernel_files.available_memory() == 200 << 10
        files["/proc/self/cgroup"] = "4:memory:/"
        files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(400 << 10)
        files["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = str(300 << 10)
        files["/sys/fs/cgroup/memory/memory.stat"] = f"inactive_file 1\ntotal_inactive_file {60 << 10}"
        assert _kernel_files.available_memory() == 160 << 10
        files.clear()
        assert _kernel_files.available_memory() is None


def test_available_cores_is_never_below_one() -> None:
    with mock.patch.object(system, "cgroup_quota", return_value=0.25):
        assert system.available_cores() == 1.0
