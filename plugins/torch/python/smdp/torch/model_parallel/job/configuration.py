"""The configuration of `smp.init`: all keys of SageMaker Model Parallel 1.x, and keys that smdp adds."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from smdp import _json
from smdp import pipeline as schedules
from smdp._shown import shown
from smdp.torch.model_parallel.job import validation

_log = logging.getLogger(__name__)

VARIABLE = "SM_HP_MP_PARAMETERS"

# The schedules that the values of `pipeline` stand for.
_SCHEDULES = {"interleaved": "smp_interleaved", "simple": "gpipe", "_only_forward": "forward_only"}
# Undocumented keys that callers pass.
_IGNORED = ("_match_weights", "fast_mode", "fork", "static_mode", "xla")
# None is treated as not given.
_OPTIONAL = ("ddp_port", "offload_directory", "partition_file", "schedule", "seed", "virtual_stages")
_ALIAS = ("pipeline_parallel_degree", "partitions")


def _key(default: Any, check: validation.Check, refusal: str = "") -> Any:
    """Returns a dataclass field for a key.

    Args:
        default: The value if the key is not given.
        check: A function that returns a valid value, or raises.
        refusal: The reason why values other than the default are refused; empty if they are not.
    """
    return field(default=default, metadata={"check": check, "refusal": refusal})


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The keys of a job's configuration. Create it with read(), which checks them.

    Attributes:
        partitions: Number of pipeline stages. `pipeline_parallel_degree` is another name for it.
        microbatches: Number of microbatches that a batch is cut into.
        pipeline: "interleaved": backward first; "simple": all forwards, then all backwards; "_only_forward".
        active_microbatches: Most microbatches in flight with "interleaved". Default: partitions + 2.
        placement_strategy: "cluster", "spread", or a permutation of the letters D, P, T; see smdp.placement.
        auto_partition: Whether stages are chosen by cost instead of `smp.partition` and `default_partition`.
        default_partition: The stage of modules that no smp.partition or smp.set_partition places.
        optimize: "memory" or "speed": whether distributed transformers divide all activations, or send less.
            It also determines the default of `memory_weight`.
        memory_weight: From 0 (balance the seconds of stages) to 1 (balance their bytes). Default: 0.2 if
            `optimize` is "speed", otherwise 0.8.
        ddp: Whether the world may contain several replicas of the pipeline.
        ddp_port: Port of rank 0's store, if the launcher does not set one.
        ddp_dist_backend: "auto" or "nccl"; smdp moves the data in either case.
        deterministic_server: Whether all ranks of a stage run the code around the model in the same order.
            Microbatches that wait for another rank's value then resume at fixed places of the schedule.
        tensor_parallel_degree: Number of ranks over which distributed modules are divided; more than one
            needs `ddp`.
        prescaled_batch: Whether the ranks of a tensor-parallel group have the same samples, instead of each
            its own.
        shard_optimizer_state: Whether data-parallel ranks share the optimizer's state; needs `ddp`.
        skip_tracing: Whether the model is cut by bytes of parameters instead of measured times.
        delayed_parameter_initialization: Read only by scripts; see smdp.torch.delayed_initialization.
        offload_activations: Whether what backward needs leaves memory after the forward: on a GPU for the
            memory of its host, on the CPU for `offload_directory`.
        activation_loading_horizon: How many tasks ahead of its backward it returns.
        fp16: Whether parameters have fp16, with masters in fp32 and a loss scale in the DistributedOptimizer.
        fp16_params: Whether distributed modules are made in fp16, without masters.
        bf16: Whether the model computes in bf16; needs sharded data parallelism.
        sharded_data_parallel_degree: Number of ranks over which parameters, gradients and optimizer state
            are distributed; more than one needs `ddp` and one partition.
        sdp_reduce_bucket_size: Has no effect: gradients are sent unit by unit.
        sdp_param_persistence_threshold: With sharded data parallelism, parameters with fewer elements stay
            whole.
        sdp_max_live_parameters: With sharded data parallelism, the number of elements that may be whole when
            the next unit is gathered ahead.
        sdp_hierarchical_allgather: Has no effect: the core chooses the algorithm.
        sdp_gradient_clipping: With sharded data parallelism, the largest norm of the gradients, to which
            `optimizer.step()` clips them.
        load_partition: Whether the model is cut as `partition_file` says.
        partition_file: A JSON file. Without `load_partition`, the first rank writes the partition to it.
        schedule: Only in smdp:  one of `smdp.pipeline.SCHEDULES`; takes precedence over `pipeline`.
        virtual_stages: Only in smdp:  virtual stages per rank. Default: the usual number for the schedule.
        seed: Only in smdp:  seed for dropout. Default: that of rank 0.
        offload_directory: Only in smdp:  a directory on a local disk of each host, for `offload_activations`
            of models on the CPU. Default: these stay in memory.

    The other keys belong to TensorFlow and must have their defaults.
    """

    partitions: int = _key(1, validation.count)
    microbatches: int = _key(1, validation.count)
    pipeline: str = _key("interleaved", validation.one_of(validation.PIPELINES))
    active_microbatches: int = _key(3, validation.count)
    placement_strategy: str = _key("cluster", validation.placement_strategy)
    auto_partition: bool = _key(True, validation.flag)
    default_partition: int = _key(0, validation.index)
    optimize: str = _key("memory", validation.one_of(validation.OPTIMIZE))
    memory_weight: float = _key(0.8, validation.share)
    ddp: bool = _key(False, validation.flag)
    ddp_port: int | None = _key(None, validation.port)
    ddp_dist_backend: str = _key("auto", validation.one_of(["auto", "nccl"]))
    deterministic_server: bool = _key(False, validation.flag)
    tensor_parallel_degree: int = _key(1, validation.count)
    prescaled_batch: bool = _key(False, validation.flag)
    shard_optimizer_state: bool = _key(False, validation.flag)
    skip_tracing: bool = _key(False, validation.flag)
    delayed_parameter_initialization: bool = _key(False, validation.flag)
    offload_activations: bool = _key(False, validation.flag)
    activation_loading_horizon: int = _key(4, validation.count)

    schedule: str = _key("smp_interleaved", validation.schedule)
    virtual_stages: int | None = _key(None, validation.count)
    seed: int | None = _key(None, validation.seed)
    offload_directory: str | None = _key(None, validation.text)

    fp16: bool = _key(False, validation.flag)
    fp16_params: bool = _key(False, validation.flag)
    bf16: bool = _key(False, validation.flag)
    sharded_data_parallel_degree: int = _key(1, validation.count)
    sdp_reduce_bucket_size: int = _key(500_000_000, validation.elements)
    sdp_param_persistence_threshold: int = _key(1_000_000, validation.elements)
    sdp_max_live_parameters: int = _key(1_000_000_000, validation.elements)
    sdp_hierarchical_allgather: bool = _key(True, validation.flag)
    sdp_gradient_clipping: float = _key(1.0, validation.positive)

    load_partition: bool = _key(False, validation.flag)
    partition_file: str = _key("", validation.text)

    contiguous: bool = _key(True, validation.flag, "is for TensorFlow only")
    horovod: bool = _key(False, validation.flag, "is for TensorFlow only; use `ddp` for data parallelism")

    @property
    def pipeline_parallel_degree(self) -> int:
        """Another name for `partitions`."""
        return self.partitions

    @classmethod
    def read(
        cls, config: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> Configuration:
        """Returns the configuration of a job.

        Args:
            config: The configuration given by the script.
            environ: Environment variables. Default: os.environ. Each key of the JSON object in
                SM_HP_MP_PARAMETERS takes precedence over the same key of `config`.

        Raises:
            ValueError: A key is unknown or belongs to a feature that is not supported; a value is wrong or
                contradicts another one; or the variable does not contain a JSON object.
        """
        if config is not None and not isinstance(config, Mapping):
            raise ValueError(
                f"[smdp] smp.init() got {shown(config)}; expected a dict with the configuration, or nothing"
            )
        given = _without_alias(config or {}, "smp.init's configuration")
        given.update(_without_alias(_read_variable(os.environ if environ is None else environ), VARIABLE))
        known = {key.name: key for key in fields(cls)}
        ignored = []
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name in _IGNORED:
                ignored.append(name)
            elif name not in known:
                raise ValueError(_unknown(name, [*known, *_IGNORED, _ALIAS[0]]))
            elif value is not None or name not in _OPTIONAL:
                values[name] = known[name].metadata["check"](name, value)
        if ignored:
            _log.warning("[smdp] these keys have no effect and are ignored: %s", ", ".join(sorted(ignored)))
        _check_together(values)
        for name, value in values.items():
            refusal = known[name].metadata["refusal"]
            if refusal and value != known[name].default:
                raise ValueError(
                    f"[smdp] {name} = {shown(value)} {refusal}; the only supported value is the default,"
                    f" {known[name].default!r}"
                )
        return cls(**{**_defaults(values), **values})


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults that depend on other keys."""
    return {
        "active_microbatches": values.get("partitions", 1) + 2,
        "memory_weight": 0.2 if values.get("optimize") == "speed" else 0.8,
        "schedule": _SCHEDULES[values.get("pipeline", "interleaved")],
    }


def _check_together(values: Mapping[str, Any]) -> None:
    """Checks rules that involve several keys; `values` contains the given keys."""
    partitions = values.get("partitions", 1)
    if values.get("auto_partition") is False and "default_partition" not in values:
        raise ValueError(
            "[smdp] default_partition must be supplied if auto_partition is set to False! It is the stage of"
            " modules that smp.partition does not name; for example, set it to 0."
        )
    if values.get("default_partition", 0) >= partitions:
        raise ValueError(
            "[smdp] default_partition must be less than the number of partitions! Got default_partition ="
            f" {values['default_partition']} and partitions = {partitions}."
        )
    if values.get("auto_partition") is False and "virtual_stages" in values:
        raise ValueError(
            f"[smdp] virtual_stages = {values['virtual_stages']} cannot be used while auto_partition is off;"
            " remove virtual_stages. The stages follow from the assignments by smp.partition and"
            " smp.set_partition."
        )
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in values and not values.get("ddp"):
            raise ValueError(
                f"[smdp] `{name}` needs `ddp` to be set as well. Got {name} ="
                f" {values[name]!r} and ddp = False."
            )
    if values.get("ddp") and values.get("horovod"):
        raise ValueError("[smdp] 'ddp' and 'horovod' cannot be simultaneously enabled.")
    if values.get("shard_optimizer_state") and not values.get("ddp"):
        raise ValueError(
            "[smdp] shard_optimizer_state = True shards over replicas, so `ddp` must be set as well. Got"
            " ddp = False."
        )
    if values.get("shard_optimizer_state") and values.get("sharded_data_parallel_degree", 1) > 1:
        raise ValueError(
            "[smdp] shard_optimizer_state = True and sharded_data_parallel_degree ="
            f" {values['sharded_data_parallel_degree']} exclude each other, because sharded data parallelism"
            " shards the optimizer's state as well. Remove shard_optimizer_state."
        )
    if values.get("load_partition") and not values.get("partition_file"):
        raise ValueError(
            "[smdp] load_partition = True needs partition_file, the file in which an earlier job has written"
            " the partition. Got no partition_file."
        )
    _check_16_bits(values)
    tensor = values.get("tensor_parallel_degree", 1)
    if tensor > 1 and not values.get("ddp"):
        raise ValueError(
            f"[smdp] tensor_parallel_degree = {tensor} divides modules over data-parallel ranks, so `ddp`"
            " must be set as well. Got ddp = False."
        )
    virtual = values.get("virtual_stages")
    info = schedules.schedule_info({**_defaults(values), **values}["schedule"])
    if virtual is not None and info.virtual_stages not in (None, virtual):
        raise ValueError(
            f"[smdp] virtual_stages = {virtual} does not work with schedule = {info.name!r}; use"
            f" {info.virtual_stages}, or remove virtual_stages"
        )


def _check_16_bits(values: Mapping[str, Any]) -> None:
    """Checks rules of 16-bit training and of sharded data parallelism."""
    degree, partitions = values.get("sharded_data_parallel_degree", 1), values.get("partitions", 1)
    if values.get("fp16") and values.get("bf16"):
        raise ValueError("[smdp] fp16 = True and bf16 = True exclude each other. Remove one of them.")
    if values.get("bf16") and degree == 1:
        raise ValueError(
            "[smdp] bf16 = True needs sharded data parallelism, as in SMP. Got sharded_data_parallel_degree ="
            " 1. Raise the degree, or use torch.autocast or fp16."
        )
    if degree > 1 and not values.get("ddp"):
        raise ValueError(
            f"[smdp] sharded_data_parallel_degree = {degree} distributes parameters over data-parallel ranks,"
            " so `ddp` must be set as well. Got ddp = False."
        )
    if degree > 1 and partitions > 1:
        raise ValueError(
            f"[smdp] sharded_data_parallel_degree = {degree} and partitions = {partitions} exclude each"
            " other, because each rank of a pipeline keeps only its own stages anyway. Set partitions to 1,"
            " or use shard_optimizer_state instead."
        )


def _without_alias(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the keys of one source, with `pipeline_parallel_degree` renamed to `partitions`."""
    alias, name = _ALIAS
    found = dict(config)
    if alias in found:
        value = validation.count(alias, found.pop(alias))
        if name in found and validation.count(name, found[name]) != value:
            raise ValueError(
                f"[smdp] {where} has {name} = {found[name]} and {alias} = {value}, but these are two names of"
                " one key; set only one of them"
            )
        found[name] = value
    return found


def _unknown(name: object, known: list[str]) -> str:
    if not isinstance(name, str):
        return f"[smdp] the configuration has the key {shown(name)}; keys must be of type str"
    hint = validation.nearest(name, known)
    return f"[smdp] there is no key {name!r}{hint or '.'} Known keys: {', '.join(sorted(known))}"


def _read_variable(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    try:
        found = _json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(error.pos - 30, 0) : error.pos] + " >>> " + text[error.pos : error.pos + 30]
        raise ValueError(
            f"[smdp] {VARIABLE} is not valid JSON: {error.msg} at character {error.pos}, marked >>> in"
            f' {around!r}; expected an object such as {{"partitions": 2, "microbatches": 4}}'
        ) from None
    except RecursionError:
        raise ValueError(
            f"[smdp] {VARIABLE} contains JSON that is nested too deeply; expected an object"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(
            f"[smdp] {VARIABLE} = {shown(text, 120)} is not a JSON object; expected, for example,"
            ' {"partitions": 2, "microbatches": 4}'
        )
    return found
