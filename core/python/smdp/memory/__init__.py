"""Estimates the memory that training needs on every rank by formula, without a framework or a device.

    from smdp import memory
    model = memory.read_config("config.json")
    estimate = memory.estimate(model, sequence=512, microbatch_size=8, tensor=4, data=8, sharding="zero1")
    estimate.fits(40e9)                 # with the default margin of 0.8
    estimate.stages[0].activations      # bytes of one kind on one pipeline rank

The source of every formula is documented in smdp/memory.h and on the documentation page "Will it fit?". The
fields of a `Setting` are listed at `estimate()`.

An `Architecture` has `name`, `hidden`, and `layers`, a list of runs in order. Optional are `vocabulary` and
`positions` (rows of the embeddings), `embedding_extra` and `head_extra` (more parameters),
`has_embedding_dropout`, `is_tied` (the logits' matrix is the embedding), `outputs` (logits per token), and
`sequence` (tokens, if the model fixes them).

`Layers` is a run of equal layers:

- `count`: layers in the run
- `hidden`, `heads`, `key_value_heads`, `head_size`: sizes of a layer
- `ffn`: inner width of the MLP, or of one expert
- `is_gated`: three matrices in the MLP instead of two
- `is_relu`: the activation function keeps one tensor instead of two
- `has_cross_attention`: a second attention, over the output of earlier layers
- `has_query_key_value_bias`, `has_output_bias`, `has_mlp_bias`: biases
- `has_dropout`: on attention scores and on both branches
- `norms` (2), `norm_width` (2): norms in a layer; their parameters per hidden unit, 2 with a bias
- `has_unfused_norms`: norms of several operators, such as the RMS norms of transformers
- `has_query_key_norm`: a norm of queries and keys
- `has_fp32_softmax`: keeps the softmax before and after its cast
- `experts`, `experts_per_token`: a mixture of experts
- `shared_ffn`: inner width of a gated expert that processes every token
- `extra`: other parameters, whole on every rank
"""

from __future__ import annotations

from typing import Any

from smdp._core import Architecture as Architecture
from smdp._core import Layers as Layers
from smdp._core import MemoryEstimate as Estimate
from smdp._core import MemorySetting as Setting
from smdp._core import StageMemory as StageMemory
from smdp._core import StateBytes as StateBytes
from smdp._core import estimate_memory, estimate_trace_memory
from smdp._core import even_stages as even_stages
from smdp._core import in_flight as in_flight
from smdp._core import layer_activations as layer_activations
from smdp._core import parameters as parameters
from smdp._core import state_bytes as state_bytes
from smdp._shown import shown
from smdp.memory.config_file import read_config as read_config
from smdp.partition.trace import Trace

__all__ = [
    "KINDS",
    "Architecture",
    "Estimate",
    "Layers",
    "Setting",
    "StageMemory",
    "StateBytes",
    "estimate",
    "even_stages",
    "in_flight",
    "layer_activations",
    "parameters",
    "read_config",
    "state_bytes",
]

KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "embedding",
    "logits",
    "transients",
    "buckets",
    "unsharded",
)
"""Attributes of StageMemory that add up to its total, each in bytes."""


def estimate(model: Architecture | Trace, setting: Setting | None = None, **options: Any) -> Estimate:
    """Estimates the bytes of memory on every pipeline rank.

    Args:
        model: An architecture from read_config(), or a trace.
        setting: How the model is trained.
        options: Fields of a Setting, instead of `setting`, with these defaults:

            - `microbatch_size` (1): samples that a tensor-parallel group processes at a time
            - `microbatches` (1): per step
            - `sequence`, `decoder_sequence` (`sequence`): tokens per sample; the second is for layers with
              cross-attention
            - `pipeline`, `tensor`, `data` (1): ranks along each axis; `data` is SMP's rdp
            - `virtual_stages` (1): per rank; 2 for schedules in a V
            - `sequence_parallel` (`False`): SMP's `optimize="memory"`
            - `schedule` (`1f1b`): any but `auto` and `forward_only`
            - `active_microbatches` (`pipeline` + 2): for `smp_interleaved`
            - `precision` (`bf16`): see `state_bytes()`
            - `sharding` (`none`), `sharding_degree` (`data`): "zero1", "zero2" or "zero3"
            - `checkpointing` (`none`): "each", "contiguous", "group_N" or "selective"
            - `flash_attention` (`False`): keeps no scores
            - `offload_activations` (`False`), `activation_loading_horizon` (4): horizon + 1 microbatches, or
              blocks of a single stage, stay on the device
            - `offload_optimizer` (`False`): keeps master weights and moments on the host or its disk
            - `bucket_bytes` (25 MiB): of a fusion buffer
            - `stage_sizes` (even): layers per virtual stage
            - `in_flight` (by the schedule): microbatches per rank

    Raises:
        ValueError: A field is invalid. The message has the field, its value, and what is allowed.
        TypeError: A field does not exist, or its value has the wrong type.
    """
    if setting is None:
        try:
            setting = Setting(**options)
        except TypeError:
            raise _explain(options) from None
    elif options:
        raise TypeError(
            f"[smdp] estimate() got both a setting and fields of one, {', '.join(options)}; pass one or the"
            " other"
        )
    if not isinstance(model, (Architecture, Trace)):
        raise TypeError(
            f"[smdp] model = {shown(model, 120)} is not valid; allowed: an Architecture or a Trace"
        )
    if not isinstance(setting, Setting):
        raise TypeError(f"[smdp] setting = {shown(setting, 120)} is not valid; allowed: a Setting")
    if isinstance(model, Trace):
        return estimate_trace_memory(*model.memory_arguments(), setting=setting)
    return estimate_memory(model, setting)


_TYPES = {int: "a 64-bit integer", bool: "True, False", str: "a string", list: "a list of numbers"}


def _explain(options: dict[str, Any]) -> TypeError:
    """Returns an error for the option that Setting rejects; nanobind's own error shows only the signature."""
    known = Setting()
    for name, value in options.items():
        if name.startswith("_") or not hasattr(known, name):
            fields = ", ".join(field for field in dir(known) if not field.startswith("_"))
            return TypeError(f"[smdp] unknown setting {name}; allowed: {fields}")
        try:
            Setting(**{name: value})
        except TypeError:
            allowed = _TYPES[type(getattr(known, name))]
            return TypeError(f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: {allowed}")
    return TypeError("[smdp] Setting does not accept these options together")
