"""Why this launcher and no other: for `SMDP_LOG_LEVEL=debug`, `smdp env` and `smdp run --dry-run`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from smdp import _log, config
from smdp._errors import ConfigError
from smdp.environments.base import Environment

_logger = logging.getLogger("smdp.environments")
_said: set[str] = set()


def explain(environ: Mapping[str, str], order: tuple[type[Environment], ...]) -> list[str]:
    """Give a line for the launcher that decides, then one for every other that left variables.

    Args:
        environ: The variables.
        order: The launchers, the one that goes before all others first.
    """
    decides = next(environment for environment in order if environment.detect(environ))
    lines = [f"{decides.name} decides: {_says(decides, environ)}"]
    for environment in order:
        if environment is decides or not environment.variables:
            continue
        if environment.detect(environ):
            lines.append(
                f"not {environment.name}, which {decides.name} goes before: {_says(environment, environ)}"
            )
        elif reason := environment.why_not(environ):
            lines.append(f"not {environment.name}: {reason}")
    options = [name for name in sorted(environ) if name.startswith("PET_") and config.read(environ, name)]
    if options:
        names = ", ".join(f"{name}={environ[name]}" for name in options)
        lines.append(f"{names}: defaults for torchrun's options, which tell no rank")
    return lines


def _says(environment: type[Environment], environ: Mapping[str, str]) -> str:
    try:
        launch = environment.launch(environ)
    except ConfigError as error:
        return f"its variables make no sense ({error})"
    master = f", rank 0 at {launch.master_addr}:{launch.master_port}" if launch.master_addr else ""
    return f"rank {launch.rank} of {launch.world_size}{master}"


def log_choice(order: tuple[type[Environment], ...], environ: Mapping[str, str] = os.environ) -> None:
    """Log explain() at level debug, each line once per process."""
    _log.follow(environ)
    if _logger.isEnabledFor(logging.DEBUG):
        for line in explain(environ, order):
            if line not in _said:
                _said.add(line)
                _logger.debug("[smdp] launcher: %s", line)


def warn_if_alone(environ: Mapping[str, str] = os.environ) -> None:
    """Warn once where this process is about to train alone and something says that more were meant."""
    reason = why_alone(environ)
    if reason and reason not in _said:
        _said.add(reason)
        _log.follow(environ)
        _logger.warning("[smdp] no launcher has started this process, so it trains alone: %s", reason)


def why_alone(environ: Mapping[str, str]) -> str:
    """Give what hints at a job of several processes, and how to get it; empty if nothing does."""
    tasks = config.read(environ, "SLURM_NTASKS")
    if config.read(environ, "SLURM_JOB_ID") and tasks not in (None, "1"):
        return (
            f"SLURM_NTASKS={tasks} tasks were asked for and are idle; start the script with srun, "
            "torchrun or mpirun in the sbatch file"
        )
    for name in ("PET_NNODES", "PET_NPROC_PER_NODE"):
        value = config.read(environ, name)
        if value not in (None, "1", "1:1"):
            return (
                f"{name}={value} is an option of torchrun; start the script with torchrun instead of python"
            )
    return ""
