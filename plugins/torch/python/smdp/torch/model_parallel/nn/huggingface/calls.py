"""Calls of Hugging Face's models, whose arguments and results substitutes take and return."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.initialization.delayed_initialization import recording
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.nn.initial_values import adopt

Forward = Callable[..., Any]

# What language models use. They refuse all else, because transformers passes it on to its layers and losses.
_USED = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "return_dict",
    "use_cache",
)
# What encoders do not compute, if it is asked for. The model around them may use other keywords itself.
_REFUSED = (
    "cache",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "encoder_hidden_states",
    "head_mask",
    "inputs_embeds",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "past_key_values",
    "past_key_value",
)


def substitute(
    module: nn.Module, make: Callable[[], nn.Module], whole: Callable[..., Mapping[str, Any]]
) -> Any:
    """Returns a module with the values of the one that it replaces.

    Args:
        module: The module that is replaced. It may have no memory.
        make: Creates the substitute.
        whole: Returns its values by name, given the state dict of the module.
    """
    first = next(module.parameters())
    named = module.state_dict(keep_vars=True).items()
    values = {name: value for name, value in named if isinstance(value, Tensor)}
    generator = torch.get_rng_state()
    with recording(first) if first.is_meta else contextlib.nullcontext(), torch.no_grad():
        with contextlib.nullcontext() if first.is_meta else torch.device("meta"):
            made = make()
        adopt(made, whole(values))
    torch.set_rng_state(generator)
    made.config = module.config
    return made


def language_model(theirs: Forward, *, has_types: bool = False) -> Callable[..., Any]:
    """Returns a function that calls a substitute as a causal language model of Hugging Face is called.

    Args:
        theirs: The forward of the replaced class.
        has_types: Whether the model has an embedding of token types.
    """

    def call(module: Any, forward: Forward, args: Any, kwargs: Any) -> Any:
        given = _bound(theirs, args, kwargs)
        _check_none(given, [name for name in given if name not in _USED])
        if not has_types:
            _check_none(given, ["token_type_ids"])
        ids, mask = given["input_ids"], given.get("attention_mask")
        if mask is not None and mask.ndim != 2:
            raise ValueError(
                f"[smdp] attention_mask has shape {tuple(mask.shape)}, but a model that tensor parallelism"
                " has replaced takes (samples, sequence); pass such a mask, or create the model outside of"
                " smp.tensor_parallelism"
            )
        masked = None if mask is None else 1 - mask.to(torch.int64)
        types, positions = given.get("token_type_ids"), given.get("position_ids")
        labels, items = given.get("labels"), given.get("num_items_in_batch")
        found = forward((ids, masked, types, positions, labels if items is None else None))
        if not module.add_lm_head:
            return _output("BaseModelOutputWithPast", given, module, last_hidden_state=found)
        loss, logits = found if isinstance(found, tuple) else (None, found)
        if labels is not None and items is not None:
            flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            loss = F.cross_entropy(*flat, reduction="sum") / items
        logits = _kept(logits, given.get("logits_to_keep"))
        return _output("CausalLMOutputWithPast", given, module, loss=loss, logits=logits)

    return call


def encoder(theirs: Forward) -> Callable[..., Any]:
    """Returns a function that calls a substitute as an encoder of Hugging Face is called.

    Args:
        theirs: The forward of the replaced class.
    """

    def call(module: Any, forward: Forward, args: Any, kwargs: Any) -> Any:
        given = _bound(theirs, args, kwargs)
        _check_none(given, _REFUSED)
        hidden, mask = given["hidden_states"], given.get("attention_mask")
        _check_alike_rows(mask)
        if mask is not None:
            mask = mask[:, :, :1]  # each token sees the same ones
        elif state.cfg.partitions > 1 or state.cfg.tensor_parallel_degree > 1:
            # transformers leaves out a mask that hides nothing, but microbatches and ranks must be alike.
            mask = torch.ones(hidden.shape[0], 1, 1, hidden.shape[1], dtype=torch.bool, device=hidden.device)
        if mask is not None and mask.dtype == torch.bool:
            lowest = torch.finfo(hidden.dtype).min
            mask = torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(~mask, lowest)
        found = forward((hidden, mask))[0]
        return _output("BaseModelOutputWithPastAndCrossAttentions", given, module, last_hidden_state=found)

    return call


def _bound(theirs: Forward, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(theirs).bind(None, *args, **kwargs)
    given = {name: value for name, value in bound.arguments.items() if name != "kwargs"}
    given |= bound.arguments.get("kwargs", {})
    return given


def _check_none(given: Mapping[str, Any], refused: Iterable[str]) -> None:
    """Raises ValueError if an argument that substitutes do not use is given."""
    for name in refused:
        # A script may pass False, or a list of None for each layer.
        if given.get(name) is not None and given[name] is not False:
            raise ValueError(
                f"[smdp] {name} is not supported by a model that tensor parallelism has replaced; leave it"
                " out, or create the model outside of smp.tensor_parallelism"
            )


def _kept(logits: Tensor, kept: Any) -> Tensor:
    """Returns the logits of the last tokens, given their number, or of the tokens of an index."""
    if kept is None:
        return logits
    # The number 0 means all tokens, as with transformers.
    return logits[:, slice(-kept, None) if isinstance(kept, int) else kept]


def _check_alike_rows(mask: Tensor | None) -> None:
    """Raises ValueError if tokens of an encoder see different tokens."""
    # An expanded mask has the same rows without a look at its values, which would wait for a GPU.
    if mask is None or mask.shape[2] == 1 or mask.stride(2) == 0:
        return
    if bool((mask != mask[:, :, :1]).any()):
        raise ValueError(
            f"[smdp] attention_mask of shape {tuple(mask.shape)} has different rows, but a model that tensor"
            " parallelism has replaced takes one row for all tokens; pass a mask of (samples, sequence), or"
            " create the model outside of smp.tensor_parallelism"
        )


def _output(kind: str, given: Mapping[str, Any], module: Any, **values: Any) -> Any:
    """Returns the values as Hugging Face's output, or as a tuple if `return_dict` is off."""
    wants = given.get("return_dict")
    if wants if wants is not None else getattr(module.config, "return_dict", True):
        # The replaced model has imported it; smdp does not need the package.
        return getattr(sys.modules["transformers.modeling_outputs"], kind)(**values)
    return tuple(value for value in values.values() if value is not None)
