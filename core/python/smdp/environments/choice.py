"""Explains the choice of launcher, for `SMDP_LOG_LEVEL=debug`, `smdp env` and `smdp run --dry-run`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from smdp import _log, config
from smdp._errors import ConfigError
from smdp.environments.base import Environment
from smdp.environments.single import SingleProcess

_logger = logging.getLogger("smdp.environments")
_said: set[str] = set()
_sets_variables = False  # whether this process has set torchrun's variables itself


def explain(environ: Mapping[str, str], order: tuple[type[Environment], ...]) -> list[str]:
    """Returns a line for the launcher that is used, then one for every other whose variables are set.

    Args:
        environ: The environment variables.
        order: The launchers, in the order of precedence.
    """
    decides = next(environment for environment in order if environment.detect(environ))
    lines = [f"using {decides.name}: {_says(decides, environ)}"]
    for environment in order:
        if environment is decides or not environment.variables:
            continue
        if environment.detect(environ):
            lines.append(
                f"not using {environment.name}, which has lower precedence than {decides.name}:"
                f" {_says(environment, environ)}"
            )
        elif reason := environment.why_not(environ):
            lines.append(f"not using {environment.name}: {reason}")
    options = [name for name in sorted(environ) if name.startswith("PET_") and config.read(environ, name)]
    if options and "PET_NNODES" not in decides.variables:
        names = ", ".join(f"{name}={environ[name]}" for name in options)
        lines.append(f"{names}: defaults for torchrun's options, which do not define a rank")
    return lines


def _says(environment: type[Environment], environ: Mapping[str, str]) -> str:
    try:
        launch = environment.launch(environ)
    except ConfigError as error:
        return f"its variables are invalid ({error})"
    master = f", rank 0 at {launch.master_addr}:{launch.master_port}" if launch.master_addr else ""
    return f"rank {launch.rank} of {launch.world_size}{master}"


def log_choice(order: tuple[type[Environment], ...], environ: Mapping[str, str] = os.environ) -> None:
    """Logs explain() at level debug, each line once per process.

    It logs nothing after set_torch_variables(), whose variables are not those of another launcher.
    """
    if _sets_variables and environ is os.environ:
        return
    _log.follow(environ)
    if _logger.isEnabledFor(logging.DEBUG):
        for line in explain(environ, order):
            if line not in _said:
                _said.add(line)
                _logger.debug("[smdp] launcher: %s", line)


def note_own_variables() -> None:
    """Notes that this process has set torchrun's variables itself."""
    global _sets_variables
    _sets_variables = True


def warn_alone(environ: Mapping[str, str] = os.environ) -> None:
    """Warns once per process that no launcher started it, with the variables that hint at one."""
    warn_of_cost(SingleProcess, environ)
    if not SingleProcess.cost(environ):
        _warn(
            "no launcher has started this process, so it trains alone, as rank 0 of 1; to start N ranks, use"
            " `smdp run -n N`, torchrun, mpirun or srun",
            environ,
        )


def warn_of_cost(environment: type[Environment], environ: Mapping[str, str] = os.environ) -> None:
    """Warns once per process if the job as started leaves resources unused; see Environment.cost()."""
    if text := environment.cost(environ):
        _warn(text, environ)


def _warn(text: str, environ: Mapping[str, str]) -> None:
    if text not in _said:
        _said.add(text)
        _log.follow(environ)
        _logger.warning("[smdp] %s", text)
