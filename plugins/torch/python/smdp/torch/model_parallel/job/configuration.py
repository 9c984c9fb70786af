"""`smp.init`'s configuration: every key of SageMaker Model Parallel 1.x, and ours."""

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

# What `pipeline` means among our schedules.
_SCHEDULES = {"interleaved": "smp_interleaved", "simple": "gpipe", "_only_forward": "forward_only"}
# Callers pass them, nobody documents them.
_IGNORED = ("_match_weights", "fast_mode", "fork", "static_mode", "xla")
# None counts as not given.
_OPTIONAL = ("ddp_port", "partition_file", "schedule", "seed", "virtual_stages")
_ALIAS = ("pipeline_parallel_degree", "partitions")


def _key(default: Any, check: validation.Check, refusal: str = "") -> Any:
    """Make a field.

    Args:
        default: Its value where the key is not given.
        check: What allows a value, or raises.
        refusal: Why another value than the default is refused, if it is.
    """
    return field(default=default, metadata={"check": check, "refusal": refusal})


def _later(default: Any, check: validation.Check, feature: str) -> Any:
    return _key(default, check, f"asks for {feature}, which comes later")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The keys of a job; made by read(), which checks them.

    Attributes:
        partitions: Pipeline stages; `pipeline_parallel_degree` is the same.
        microbatches: Into how many a batch is cut.
        pipeline: "interleaved": backward first; "simple": all forwards, then all backwards; "_only_forward".
        active_microbatches: Most in flight under "interleaved". Default: partitions + 2.
        placement_strategy: "cluster", "spread", or a permutation of D, P, T; see smdp.placement.
        auto_partition: Stages by costs; False: by `smp.partition` and `default_partition`.
        default_partition: Stage of modules that nobody placed.
        optimize: "memory" or "speed"; for pipelines, only the default of `memory_weight`.
        memory_weight: 0 to 1: how far balance of bytes counts instead of balance of seconds. Default: 0.2 if
            `optimize` is "speed", else 0.8.
        ddp: Replicas of the pipeline fill the world.
        ddp_port: Port of rank 0's store, where the launcher names none.
        ddp_dist_backend: "auto" or "nccl"; smdp moves the data either way.
        deterministic_server: Ranks with the same stage run the code around the model in the same order: what
            waits for a value of another rank goes on at fixed places of the schedule.
        prescaled_batch: Matters with tensor parallelism only.
        skip_tracing: Cut by bytes of parameters instead of measured times.
        delayed_parameter_initialization: For the script that reads it; see smdp.torch.delayed_initialization.
        schedule: Ours: one of `smdp.pipeline.SCHEDULES`; goes before `pipeline`.
        virtual_stages: Ours: per rank. Default: the schedule's usual number.
        seed: Ours: of dropout. Default: rank 0's.

    The other keys belong to features that come later, or to TensorFlow. Those that switch a feature on hold
    their defaults. Those that only tune it may hold any valid value.
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
    prescaled_batch: bool = _key(False, validation.flag)
    skip_tracing: bool = _key(False, validation.flag)
    delayed_parameter_initialization: bool = _key(False, validation.flag)

    schedule: str = _key("smp_interleaved", validation.schedule)
    virtual_stages: int | None = _key(None, validation.count)
    seed: int | None = _key(None, validation.seed)

    tensor_parallel_degree: int = _later(1, validation.count, "tensor parallelism")
    offload_activations: bool = _later(False, validation.flag, "offloading of activations")
    fp16: bool = _later(False, validation.flag, "fp16 training with a master copy in fp32")
    fp16_params: bool = _later(False, validation.flag, "modules made in fp16")
    bf16: bool = _later(False, validation.flag, "bf16 training with sharded data parallelism")
    shard_optimizer_state: bool = _later(False, validation.flag, "sharded optimizer state")
    sharded_data_parallel_degree: int = _later(1, validation.count, "sharded data parallelism")

    # These have no effect while the feature that they tune is off.
    activation_loading_horizon: int = _key(4, validation.count)
    sdp_reduce_bucket_size: int = _key(500_000_000, validation.elements)
    sdp_param_persistence_threshold: int = _key(1_000_000, validation.elements)
    sdp_max_live_parameters: int = _key(1_000_000_000, validation.elements)
    sdp_hierarchical_allgather: bool = _key(True, validation.flag)
    sdp_gradient_clipping: float = _key(1.0, validation.positive)

    contiguous: bool = _key(True, validation.flag, "is for TensorFlow only")
    horovod: bool = _key(False, validation.flag, "is for TensorFlow only; `ddp` gives data parallelism")
    load_partition: bool = _key(
        False,
        validation.flag,
        "is not supported: a checkpoint keeps its partition, and smp.set_partition makes one by hand",
    )
    partition_file: str = _key(
        "",
        validation.text,
        "is not supported: a checkpoint keeps its partition, and smp.set_partition makes one by hand",
    )

    @property
    def pipeline_parallel_degree(self) -> int:
        """The same as `partitions`."""
        return self.partitions

    @classmethod
    def read(
        cls, config: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> Configuration:
        """Give the configuration of a job.

        Args:
            config: What the script says.
            environ: Variables; default os.environ. The JSON object in SM_HP_MP_PARAMETERS goes before
                `config`, key by key.

        Raises:
            ValueError: A key is unknown, misspelt or of a feature that there is not; a value is wrong, or
                contradicts another one; the variable holds no JSON object.
        """
        if config is not None and not isinstance(config, Mapping):
            raise ValueError(
                f"[smdp] smp.init() got {shown(config)}; allowed: a dict of the configuration, or nothing"
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
            _log.warning("[smdp] these keys do nothing and are ignored: %s", ", ".join(sorted(ignored)))
        _check_together(values)
        for name, value in values.items():
            refusal = known[name].metadata["refusal"]
            if refusal and value != known[name].default:
                raise ValueError(
                    f"[smdp] {name} = {shown(value)} {refusal}; allowed: {known[name].default!r}, the default"
                )
        return cls(**{**_defaults(values), **values})


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give those defaults that depend on other keys."""
    return {
        "active_microbatches": values.get("partitions", 1) + 2,
        "memory_weight": 0.2 if values.get("optimize") == "speed" else 0.8,
        "schedule": _SCHEDULES[values.get("pipeline", "interleaved")],
    }


def _check_together(values: Mapping[str, Any]) -> None:
    """Check rules over several keys, of which `values` are those given."""
    partitions = values.get("partitions", 1)
    if values.get("auto_partition") is False and "default_partition" not in values:
        raise ValueError(
            "[smdp] default_partition must be supplied if auto_partition is set to False! It is the stage of"
            " modules that no smp.partition names, for instance 0."
        )
    if values.get("default_partition", 0) >= partitions:
        raise ValueError(
            "[smdp] default_partition must be less than the number of partitions! Got default_partition ="
            f" {values['default_partition']} and partitions = {partitions}."
        )
    if values.get("auto_partition") is False and "virtual_stages" in values:
        raise ValueError(
            f"[smdp] auto_partition is off, and virtual_stages = {values['virtual_stages']}; leave"
            " virtual_stages out: stages follow from where smp.partition and smp.set_partition put modules"
        )
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in values and not values.get("ddp"):
            raise ValueError(
                f"[smdp] `{name}` needs `ddp` to be set as well. Got {name} ="
                f" {values[name]!r} and ddp = False."
            )
    if values.get("ddp") and values.get("horovod"):
        raise ValueError("[smdp] 'ddp' and 'horovod' cannot be simultaneously enabled.")
    virtual = values.get("virtual_stages")
    info = schedules.schedule_info({**_defaults(values), **values}["schedule"])
    if virtual is not None and info.virtual_stages not in (None, virtual):
        raise ValueError(
            f"[smdp] virtual_stages = {virtual} does not go with schedule = {info.name!r}; allowed:"
            f" {info.virtual_stages}, or none"
        )


def _without_alias(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Give the keys of one source, `pipeline_parallel_degree` under its older name."""
    alias, name = _ALIAS
    found = dict(config)
    if alias in found:
        value = validation.count(alias, found.pop(alias))
        if name in found and validation.count(name, found[name]) != value:
            raise ValueError(
                f"[smdp] {where} has {name} = {found[name]} and {alias} = {value}, which are two names of one"
                " key; give one of them"
            )
        found[name] = value
    return found


def _unknown(name: object, known: list[str]) -> str:
    if not isinstance(name, str):
        return f"[smdp] the configuration has the key {shown(name)}; allowed: names, as str"
    hint = validation.nearest(name, known)
    return f"[smdp] there is no key {name!r}{hint or '.'} Allowed: {', '.join(sorted(known))}"


def _read_variable(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    try:
        found = _json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(error.pos - 30, 0) : error.pos] + " >>> " + text[error.pos : error.pos + 30]
        raise ValueError(
            f"[smdp] {VARIABLE} holds no JSON: {error.msg} at character {error.pos}, where >>> stands in"
            f' {around!r}; allowed: an object such as {{"partitions": 2, "microbatches": 4}}'
        ) from None
    except RecursionError:
        raise ValueError(f"[smdp] {VARIABLE} holds JSON that nests too deep; allowed: an object") from None
    if not isinstance(found, dict):
        raise ValueError(
            f"[smdp] {VARIABLE} = {shown(text, 120)} is no JSON object; allowed: for instance"
            ' {"partitions": 2, "microbatches": 4}'
        )
    return found
