"""Training arguments, smdp's and transformers' own, under the launchers that there are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import language_model as lm
import pytest
import torch
import transformers
from transformers_spawn import run

import smdp.torch
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.transformers import DataParallel, ModelParallel


def launched_by(launcher: str) -> None:
    """Leave only the variables that this launcher sets."""
    rank, size, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    world = "OMPI_COMM_WORLD_"
    variables = {
        "Open MPI": {f"{world}RANK": rank, f"{world}SIZE": size}
        | {f"{world}LOCAL_RANK": rank, f"{world}LOCAL_SIZE": size},
        "SLURM": {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": size, "SLURM_NODEID": "0"}
        | {"SLURM_TASKS_PER_NODE": size, "SLURM_JOB_ID": port, "SLURM_STEP_ID": "0"},
    }
    os.environ.update(variables[launcher])


def each_by_itself() -> Any:
    args = transformers.TrainingArguments(lm.folder(), max_steps=3, report_to=[])
    for plugin in (DataParallel(), ModelParallel(stages=1)):
        told = f"{type(plugin).__name__}: 2 processes were started, but the arguments"
        with pytest.raises(ValueError, match=told) as caught:
            lm.trainer(args, plugins=[plugin])
        assert "transformers.training_args.TrainingArguments" in str(caught.value)


def each_by_itself_by_mpirun() -> Any:
    launched_by("Open MPI")
    return each_by_itself()


@pytest.mark.parametrize("way", [each_by_itself, each_by_itself_by_mpirun], ids=["torchrun", "mpirun"])
def test_arguments_that_know_of_one_process(way: Callable[[], Any]) -> None:
    run(way, 2)


def over_gloo_by_srun() -> Any:
    """Of srun's variables Accelerate knows nothing."""
    launched_by("SLURM")
    args = lm.arguments(4, ddp_backend="gloo", max_steps=3)
    trainer = lm.trainer(args)
    trainer.train()
    assert torch.distributed.get_backend() == "gloo"
    assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)
    return [args.world_size, args.process_index, lm.weights_hash(trainer.model)]


def test_other_backends_know_every_launcher() -> None:
    first, second = run(over_gloo_by_srun, 2)
    assert [first[:2], second[:2]] == [[2, 0], [2, 1]]
    assert first[2] == second[2]


def over_gloo_each_by_itself() -> Any:
    """Without a GPU and without use_cpu, transformers' own arguments make a group that nobody uses."""
    args = transformers.TrainingArguments(lm.folder(), ddp_backend="gloo", max_steps=3, report_to=[])
    assert args.world_size == 2
    for plugin in (DataParallel(), ModelParallel(stages=1)):
        told = f"{type(plugin).__name__}: Accelerate would train each of the 2 ranks.*'gloo'.*Pass use_cpu"
        with pytest.raises(ValueError, match=told):
            lm.trainer(args, plugins=[plugin])
    args = transformers.TrainingArguments(
        lm.folder(), ddp_backend="gloo", use_cpu=True, max_steps=3, report_to=[]
    )
    trainer = lm.trainer(args)
    trainer.train()
    return lm.weights_hash(trainer.model)


def test_plain_arguments_over_gloo() -> None:
    first, second = run(over_gloo_each_by_itself, 2)
    assert first == second


def named_in_plain_arguments() -> Any:
    args = transformers.TrainingArguments(lm.folder(), ddp_backend="smdp", max_steps=3, report_to=[])
    assert args.world_size == 2 and lm.is_over_smdp()
    trainer = lm.trainer(args)
    trainer.train()
    return lm.weights_hash(trainer.model)


def test_plain_arguments_take_the_name() -> None:
    first, second = run(named_in_plain_arguments, 2)
    assert first == second


def alone_over_gloo() -> Any:
    """One process that no launcher started, with a backend in its arguments."""
    args = lm.arguments(ddp_backend="gloo", max_steps=3)
    lm.trainer(args).train()
    return [args.world_size, torch.distributed.is_initialized()]


def nccl_without_gpu() -> Any:
    with pytest.raises(
        ValueError, match="ddp_backend is 'nccl', which needs GPUs, but there is no GPU to use"
    ):
        lm.arguments(ddp_backend="nccl")


def test_other_backends_that_cannot_be() -> None:
    assert run(alone_over_gloo, 1) == [[1, False]]
    run(nccl_without_gpu, 2)


def timed() -> Any:
    """The default group and that of the plugins."""
    for _ in range(2):  # the second Trainer's takes the group of the first one's
        plugin = DataParallel(algorithm="ring")
        lm.trainer(lm.arguments(**json.loads(os.environ["OPTIONS"])), plugins=[plugin])
    groups = torch.distributed.distributed_c10d._world.pg_map
    return [group.timeout_s for group in groups if isinstance(group, ProcessGroupSmdp)]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"ddp_timeout": 77}, [77, 77]),
        ({}, [55, 55]),
        ({"ddp_timeout": 77, "ddp_backend": "gloo"}, [77]),
    ],
    ids=["asked for", "default", "beside gloo"],
)
def test_timeout(options: dict[str, Any], seconds: list[int]) -> None:
    env = {"OPTIONS": json.dumps(options), "SMDP_TIMEOUT": "55"}
    assert run(timed, 2, env=env) == [seconds, seconds]


def parsed() -> Any:
    """--ddp_backend smdp on the command line."""
    parser = transformers.HfArgumentParser(smdp.transformers.TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(
        ["--output_dir", lm.folder(), "--ddp_backend", "smdp", "--max_steps", "2", "--report_to", "none"]
    )
    lm.trainer(args).train()
    return [args.ddp_backend, lm.is_over_smdp(), args.world_size, args.process_index]


def test_command_line() -> None:
    assert run(parsed, 2) == [["smdp", True, 2, 0], ["smdp", True, 2, 1]]
