"""Commands that start scripts written for Amazon's libraries: smddprun, smddpmprun, smddpsinglenode, ..."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from smdp import ConfigError, config
from smdp.cli.command_line import CommandError, command_line
from smdp.cli.run import run
from smdp.environments import find
from smdp.environments.sagemaker import PORT, SageMaker, read_hosts
from smdp.environments.single import SingleProcess
from smdp.environments.torch_variables import set_torch_variables
from smdp.sagemaker.job import count_gpus


def main() -> None:
    """Runs the script as this rank under mpirun or another launcher; otherwise starts this machine's ranks.

    The arguments are options of Amazon's commands, which have no effect here, followed by one of three:
    `python` with its options and a script, a script, or `-m` and a module.
    """
    name = os.path.basename(sys.argv[0])
    words = _without_options(sys.argv[1:])
    if not words:
        sys.exit(f"usage: {name} [python] FILE [arguments], or {name} [python] -m MODULE [arguments]")
    os.environ["SMDP_COMPAT"] = "1"
    try:
        launcher = find()
        if launcher in (SingleProcess, SageMaker):
            if launcher is SageMaker:
                _warn_of_other_hosts(name)
            count = config.read_int(os.environ, "SMDP_LOCAL_WORLD_SIZE", minimum=1)
            count = count or config.read_int(os.environ, "SM_NUM_GPUS") or count_gpus() or 1
            words = _without_mpi4py(words)  # mpirun does not run here
            is_module = words[0] == "-m"
            sys.exit(run(words[is_module:], count, module=is_module, compat=True))
        _set_master()
        set_torch_variables()
        if "mpi4py" in words and importlib.util.find_spec("mpi4py") is None:
            words = _without_mpi4py(words)
            _warn()
        argv = command_line(words) if words[0] != "-m" else [sys.executable, *words]
        os.execvp(argv[0], argv)
    except (ConfigError, CommandError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(2 if isinstance(error, ConfigError) else 127)


def _set_master() -> None:
    """Sets where rank 0 is: mpirun does not tell, but sagemaker-training does, in variables of its own."""
    server, port = config.read(os.environ, "SMDATAPARALLEL_SERVER_ADDR"), PORT
    if server is not None:  # scripts for SMDDP expect the port two above this one
        port = (config.read_port(os.environ, "SMDATAPARALLEL_SERVER_PORT") or PORT - 2) + 2
    elif SageMaker.detect(os.environ):
        server = read_hosts(os.environ)[0][0]
    if server is not None and config.read(os.environ, "SMDP_MASTER_ADDR") is None:
        os.environ.setdefault("MASTER_ADDR", server)
        os.environ.setdefault("MASTER_PORT", str(port))


def _without_options(words: Sequence[str]) -> list[str]:
    """Returns the words without smddpmprun's own options: -i TYPE and --allow-bypass."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option = rest.pop(0)
        if option in ("-i", "--instance-type") and rest:
            rest.pop(0)
        elif option == "--":
            break
    return rest


def _without_mpi4py(words: list[str]) -> list[str]:
    """Returns the words without `-m mpi4py`, which only makes an exception in one rank end all ranks."""
    place = next((i for i in range(len(words) - 1) if words[i : i + 2] == ["-m", "mpi4py"]), None)
    return words if place is None else words[:place] + words[place + 2 :]


def _warn_of_other_hosts(name: str) -> None:
    hosts, current = read_hosts(os.environ)
    if len(hosts) > 1:
        sys.stderr.write(
            f"[smdp] {name} starts only the ranks of {current}, so each of the job's {len(hosts)} hosts"
            " trains a separate model. To train one model, start it with mpirun, or start the job with"
            " SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main\n"
        )


def _warn() -> None:
    if os.environ.get("RANK") == "0":
        sys.stderr.write(
            "[smdp] mpi4py is not installed, so `-m mpi4py` is ignored. If a rank fails before it has joined"
            " the others, they wait for it for SMDP_INIT_TIMEOUT seconds\n"
        )
