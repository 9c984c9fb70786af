"""`smdp bench`: sizes, factors, the table, the check of results, and real runs of the peers that are here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smdp._errors import ConfigError, SmdpError
from smdp.cli import bench
from smdp.cli.bench import sizes, worker
from smdp.cli.bench.peers.base import Peer, Work, numpy_buffers, numpy_work, split


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def test_bus_factors() -> None:
    assert sizes.bus_factor("all_reduce", 4) == 1.5
    assert sizes.bus_factor("reduce_scatter", 4) == 0.75
    assert sizes.bus_factor("all_gather", 4) == 0.75
    assert sizes.bus_factor("all_to_all", 4) == 0.75
    assert sizes.bus_factor("broadcast", 4) == 1.0


def test_steps() -> None:
    assert sizes.steps(4096, 100 << 20, 5) == [*(4096 * 5**i for i in range(7)), 100 << 20]
    assert sizes.steps(4096, 4096 * 25, 5) == [4096, 4096 * 5, 4096 * 25]
    assert sizes.steps(1, 4, 1.1)[:3] == [1, 2, 3]
    assert sizes.steps(8, 8, 2) == [8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operation": "sum"}, "operation='sum'.*all_reduce"),
        ({"dtype": "float8"}, "--dtype='float8'.*bfloat16"),
        ({"against": "nccl"}, "--against='nccl'.*gloo"),
        ({"begin": "x"}, "-b='x'.*4K"),
        ({"end": "0"}, "-e='0'"),
        ({"begin": "2K", "end": "1K"}, "-b='2048'.*at most -e 1024"),
        ({"factor": 1.0}, "-f='1.0'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    arguments = {"operation": "all_reduce", **arguments}
    with pytest.raises(ConfigError, match=message):
        bench.bench(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ddp -b 4K", "-b applies to a collective, not to ddp; remove it"),
        ("ddp --dtype float32", "--dtype applies to a collective, not to ddp; remove it"),
        ("all_reduce --compression none", "--compression applies to ddp, not to all_reduce; remove it"),
        ("reduce --in-forward", "operation='reduce' is not valid; allowed: all_reduce, "),
    ],
)
def test_options_that_would_be_passed_over(arguments: str, message: str) -> None:
    command = [sys.executable, "-m", "smdp", "bench", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"smdp bench: {message}"), done.stderr


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            "torch",
            ["all_reduce", "--against", "gloo"],
            "--against='gloo' requires torch, .*\"smdp\\[torch\\]\"$",
        ),
        ("torch", ["ddp"], "operation='ddp' requires torch, .*pip install \"smdp\\[torch\\]\"$"),
        ("mpi4py", ["all_reduce", "--against", "openmpi"], "requires mpi4py, .*pip install mpi4py$"),
        ("ml_dtypes", ["all_reduce", "--dtype", "bfloat16"], "requires ml_dtypes, .*pip install ml-dtypes$"),
    ],
)
def test_missing_package_is_one_line_with_the_cure(
    module: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    # Hides the package from this interpreter's children, also where it is installed.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find_spec = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda *of: None if of[0] == {module!r} else find_spec(*of)\n"
    )
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "bench", *arguments],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(message, done.stderr.strip()), done.stderr


@pytest.mark.timeout(120)
@pytest.mark.skipif(not has("torch"), reason="needs torch")
def test_peers_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}  # without mpirun
    options = ["all_reduce", "-b", "4", "-e", "4", "--iters", "4", "--json", "--against", "gloo,openmpi"]
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "bench", *options], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {item["contender"] for item in json.loads(done.stdout)["results"]} == {"smdp-torch", "gloo"}
    assert done.stderr.startswith("smdp bench: --against='openmpi' requires ")
    assert done.stderr.strip().endswith("; skipping it")


def test_table() -> None:
    ours = sizes.measurement("smdp-torch", "all_reduce", 2, 10**6, 250_000, "float32", 1e-3)
    assert ours.algbw == pytest.approx(1.0)
    assert ours.busbw == pytest.approx(1.0)
    theirs = sizes.Measurement("gloo", 10**6, 250_000, "float32", 4e-3, 0.25, 0.25, 4.0)
    words = sizes.row([ours, theirs]).split()
    assert words == [
        "1000000",
        "250000",
        "float32",
        "1000.00",
        "1.000",
        "1.000",
        "4000.00",
        "0.250",
        "0.250",
        "4.00x",
    ]
    assert "ratio" in sizes.header(["smdp-torch", "gloo"])
    assert "ratio" not in sizes.header(["smdp-torch"])


class Alone(Peer):
    """A world of one, right or wrong."""

    name = "alone"

    def __init__(self, *, error: float = 0.0) -> None:
        self._error = error

    def prepare(self, operation: str, total: int, dtype: str) -> Work:
        source, result = numpy_buffers(operation, total, dtype, 1)

        def run() -> None:
            np.copyto(result, source)
            result[-1] += self._error

        return numpy_work(run, source, result)

    def barrier(self) -> None:
        pass

    def maximum(self, values: object) -> list[float]:
        return list(values)  # type: ignore[call-overload,no-any-return]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("operation", bench.OPERATIONS)
@pytest.mark.parametrize("dtype", bench.DTYPES)
def test_measure(operation: str, dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    total = worker.elements(operation, 100, dtype, 1)
    line = worker.measure([Alone()], operation, total, dtype, 0, 1, 3)
    assert line[0].size == 100 // worker.item_size(dtype) * worker.item_size(dtype)
    assert line[0].seconds > 0


def test_a_wrong_result_is_an_error() -> None:
    with pytest.raises(
        SmdpError, match=r"alone: all_reduce of 25 elements is wrong on rank 0 of 1: element 24"
    ):
        worker.measure([Alone(error=1.0)], "all_reduce", 25, "float32", 0, 1, 3)


def test_elements_of_a_size() -> None:
    assert [worker.elements("all_reduce", size, "float32", 3) for size in (1, 7, 8)] == [1, 1, 2]
    assert [worker.elements("all_gather", size, "float32", 3) for size in (1, 23, 24)] == [3, 3, 6]


def test_split() -> None:
    assert split("reduce_scatter", 8, 4) == (8, 2)
    assert split("all_gather", 8, 4) == (2, 8)
    assert split("all_to_all", 8, 4) == (8, 8)


REQUEST = {"sizes": [1, 4, 4096, 300_000], "dtype": "int32", "iters": 4, "json": True}


@pytest.mark.timeout(120)
@pytest.mark.skipif(not has("torch"), reason="needs torch")
@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_gloo_gives_right_results(operation: str) -> None:
    request = {**REQUEST, "operation": operation, "contenders": ["gloo", "gloo4"]}
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "run", "-n", "2", "-m", "smdp.cli.bench.worker", json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line.removeprefix("[rank 0] ") for line in done.stdout.splitlines() if line.startswith("[rank 0]")
    ]
    text = "\n".join(lines)
    found = json.loads(text[text.index("{") :])
    assert [item["contender"] for item in found["results"]] == ["gloo", "gloo4"] * 3


@pytest.mark.timeout(120)
@pytest.mark.skipif(not has("mpi4py") or shutil.which("mpirun") is None, reason="needs mpirun and mpi4py")
@pytest.mark.parametrize("operation", bench.OPERATIONS)
def test_openmpi_gives_right_results(operation: str, tmp_path: Path) -> None:
    request = {**REQUEST, "operation": operation, "contenders": ["openmpi"]}
    command = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*command, sys.executable, "-m", "smdp.cli.bench.worker", json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert [item["count"] for item in found["results"]][1:] == [1024, 75_000]


@pytest.mark.skipif(not has("mpi4py") or shutil.which("mpirun") is None, reason="needs mpirun and mpi4py")
def test_openmpi_has_no_sums_of_16_bit_floats() -> None:
    with pytest.raises(ConfigError, match=r"--dtype='float16' is not valid; allowed: .* which MPI can sum"):
        bench.bench("all_reduce", dtype="float16", against="openmpi")


@pytest.mark.timeout(120)
@pytest.mark.skipif(not has("torch") or shutil.which("mpirun") is None, reason="needs torch and mpirun")
def test_ddp_under_mpirun() -> None:
    """Its ranks are those of the launcher, whose variables are not torchrun's."""
    mpirun = ["mpirun", "-n", "2", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    options = ["--gradients", "5x4K", "--forward-ms", "1", "--backward-ms", "1", "--json"]
    done = subprocess.run(
        [*mpirun, sys.executable, "-m", "smdp", "bench", "ddp", *options],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
