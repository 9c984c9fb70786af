"""The main program of every container of a job: starts the ranks of this host and ends as the job ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from smdp import SmdpError, config
from smdp.cli.rank_environments import Place, free_ports, rank_environments
from smdp.environments.sagemaker import PORT
from smdp.sagemaker.entry_script import EntryScript
from smdp.sagemaker.failure import Failure, TrainingError, write_failure
from smdp.sagemaker.first_host import FirstHost
from smdp.sagemaker.host_channel import Hello, HostChannel
from smdp.sagemaker.host_launcher import HostLauncher
from smdp.sagemaker.job import Job, failure_file
from smdp.sagemaker.other_host import OtherHost

_CONFIG_CODE = 2  # the exit code of `smdp run` for wrong settings


def main() -> None:
    """Runs the training job's script on all ranks of this host. Set in SAGEMAKER_TRAINING_MODULE.

    Raises:
        TrainingError: The job failed, on this host or another. Its errno becomes the exit code. The failure
            file has been written.
    """
    try:
        job = Job.read()
        script = EntryScript.find(job, os.environ)
        script.install()
        train(job, script, job.arguments())
    except TrainingError:
        raise
    except SmdpError as error:
        raise fail(str(error), _CONFIG_CODE) from None
    except Exception as error:  # any error, so that SageMaker can show it
        raise fail(f"{type(error).__name__}: {error}", 1) from error


def train(job: Job, script: EntryScript, arguments: list[str], processes: int | None = None) -> None:
    """Starts the ranks of this host together with those of the other hosts, and waits for all of them.

    Args:
        job: The training job.
        script: The script that ranks run.
        arguments: Arguments of the script.
        processes: Number of ranks of this host. The default is processes_per_host().

    Raises:
        ConfigError: The settings are wrong, or a host did not connect.
        TrainingError: A rank failed, or asks for a restart.
    """
    is_alone = job.current_host not in job.hosts
    hosts = (job.current_host,) if is_alone else job.hosts
    if is_alone:
        _say(
            f"{job.current_host} is in none of the instance groups of the distribution, so it runs"
            " the script alone, as one process"
        )
    count = 1 if is_alone else processes or processes_per_host(job, os.environ)
    for folder in (job.model_dir, job.output_data_dir):
        os.makedirs(folder, exist_ok=True)
    port = config.read_port(os.environ, "MASTER_PORT") or (PORT if len(hosts) > 1 else free_ports())
    if port > 65533:
        raise config.invalid("MASTER_PORT", port, "a port up to 65533: smdp also uses the next two")
    settings = config.Config.from_environ(os.environ)
    hello = Hello(job.current_host, hosts, count, settings.secret or "")
    channel: HostChannel = (FirstHost if job.current_host == hosts[0] else OtherHost)(hello, port + 2)
    try:
        first_rank, world_size = channel.meet(settings.init_timeout_s)
        place = Place(first_rank, world_size, hosts[0] if len(hosts) > 1 else "127.0.0.1", port)
        last = first_rank + count - 1
        ranks = f"rank {first_rank}" if count == 1 else f"ranks {first_rank} to {last}"
        host = f"{job.current_host}, host {hosts.index(job.current_host) + 1} of {len(hosts)},"
        _say(f"{host} runs {ranks} of {world_size}")
        environments = rank_environments(variables(job, script, os.environ), count, place=place)
        launcher = HostLauncher(
            script.command(arguments),
            environments,
            host=job.current_host,
            channel=channel,
            restart_code=config.read_preempted_exit_code(os.environ),
            first_rank=first_rank,
            cwd=script.code_dir,
        )
        code = launcher.run()
    finally:
        channel.close()
    failure = channel.failure
    if failure is None and code:  # the reader of the launcher's output is gone
        failure = Failure(job.current_host, None, code, f"its launcher ended with exit code {code}")
    if failure is not None:
        raise fail(failure.reason, failure.code)


def processes_per_host(job: Job, environ: Mapping[str, str]) -> int:
    """Returns the number of ranks to start on this host.

    It is SMDP_LOCAL_WORLD_SIZE if set, then the SDK's processes_per_host, then the number of GPUs, then 1.

    Raises:
        ConfigError: The value is not a number above 0.
    """
    count = config.read_int(environ, "SMDP_LOCAL_WORLD_SIZE", minimum=1)
    if count is not None:
        return count
    name = "sagemaker_mpi_num_of_processes_per_host"
    value = job.framework_parameters.get(name)
    if value is None:
        return max(job.num_gpus, 1)
    return config.read_int({name: str(value)}, name, minimum=1) or 1


def variables(job: Job, script: EntryScript, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that all ranks of this host share.

    SM_* variables that are already set keep their values. SMDP_COMPAT is turned on if the SDK's distribution
    asks for one of Amazon's libraries, unless it is already set.
    """
    common = {**job.variables(script.program, script.module_dir), **environ}
    folders = [script.code_dir, *filter(None, [environ.get("PYTHONPATH")])]
    common["PYTHONPATH"] = os.pathsep.join(folders)
    interface = common.get("SM_NETWORK_INTERFACE_NAME")
    if interface in config.interfaces():
        common.setdefault("NCCL_SOCKET_IFNAME", str(interface))
    parameters = job.framework_parameters
    is_amazons = parameters.get("sagemaker_distributed_dataparallel_enabled") or "mp_parameters" in (
        job.hyperparameters
    )
    is_compat = config.read_bool(environ, "SMDP_COMPAT")
    if is_compat is None and is_amazons:
        is_compat = True
    if is_compat is not None:
        common["SMDP_COMPAT"] = "1" if is_compat else "0"
    if is_compat and not parameters:
        common.pop("SM_FRAMEWORK_PARAMS", None)  # smdp.compat sets what such scripts read
    return common


def fail(text: str, code: int) -> TrainingError:
    """Writes the failure file and returns the error to raise."""
    text = text if text.startswith("[smdp] ") else f"[smdp] {text}"
    write_failure(failure_file(os.environ), text)
    return TrainingError(text, code)


def _say(message: str) -> None:
    sys.stderr.write(f"[smdp] {message}\n")
    sys.stderr.flush()
