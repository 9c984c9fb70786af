"""`smdp run`: starts the ranks according to the options, and returns the exit code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from smdp import config
from smdp._errors import ConfigError
from smdp._misspelt import untold
from smdp.cli.binding import BindTo, cpus_of_ranks
from smdp.cli.command_line import CommandError, command_line
from smdp.cli.launcher import Launcher
from smdp.cli.rank_environments import rank_environments


def run(
    command: Sequence[str],
    nproc: int,
    *,
    module: bool = False,
    master_port: int | None = None,
    stop_timeout_s: float = 5.0,
    grace_s: float = 120.0,
    compat: bool = False,
    bind_to: BindTo = BindTo.NONE,
    is_dry: bool = False,
) -> int:
    """Starts nproc ranks of a command and waits for them.

    Args:
        command: A Python file, a module or a program, and its arguments.
        nproc: Number of ranks.
        module: Whether the first word of the command is a module.
        master_port: MASTER_PORT of the ranks; smdp's store uses the next port. Default: free ports.
        stop_timeout_s: Seconds between SIGTERM and SIGKILL after a rank has failed.
        grace_s: Seconds that ranks have to save and exit, after this process received SIGTERM or a rank
            requested a restart.
        compat: Whether ranks run with SMDP_COMPAT=1.
        bind_to: What each rank is bound to.
        is_dry: Whether to print what every rank would see instead of starting the ranks.

    Returns:
        0 if all ranks succeeded; the code of the rank that failed first (128 + the signal's number if it was
        killed); or SMDP_PREEMPTED_EXIT_CODE if no rank failed and one requested a restart.
    """
    try:
        argv = command_line(command, module=module)
        environ = dict(os.environ)
        if compat:
            environ["SMDP_COMPAT"] = "1"
        for text in untold(environ):
            _say(text)
        environments = rank_environments(environ, nproc, master_port=master_port)
        restart_code = config.read_preempted_exit_code(environ)
        cpus = cpus_of_ranks(bind_to, nproc)
    except (ConfigError, OSError) as error:
        _say(str(error))
        return 2
    except CommandError as error:
        _say(str(error))
        return error.code
    if is_dry:
        from smdp.cli import dry_run

        text, is_good = dry_run.describe(argv, environments, cpus)
        print(text)
        return 0 if is_good else 2
    launcher = Launcher(
        argv,
        environments,
        cpus=cpus,
        stop_timeout_s=stop_timeout_s,
        grace_s=grace_s,
        restart_code=restart_code,
    )
    return launcher.run()


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"smdp: {message}\n".encode(errors="replace"))
