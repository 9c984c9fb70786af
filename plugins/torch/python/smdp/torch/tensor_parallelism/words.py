"""The words in which transformers and users write plans, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.embeddings import Vocabulary, Width
from smdp.torch.tensor_parallelism.actions.experts import Experts, PackedDim
from smdp.torch.tensor_parallelism.actions.linears import Columns, Head, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import LatentOutputs, PartialGradient
from smdp.torch.tensor_parallelism.layers.linear import inputs_of, is_linear, outputs_of

WORDS = (
    "colwise",
    "colwise_gather_output",
    "colwise_rep",
    "rowwise",
    "rowwise_split_input",
    "rowwise_rep",
    "packed_colwise",
    "packed_rowwise",
    "embedding_rowwise",
    "embedding_colwise",
    "replicated_with_grad_allreduce",
    "mla_kv_a_proj",
    "moe_tp_experts",
    "local_params",
    "replicated",
    "replicate",
)


# What words mean for parameters of experts: which dimension is divided, and into how many blocks.
_OF_EXPERTS = {
    "colwise": PackedDim(-2),
    "rowwise": PackedDim(-1),
    "packed_colwise": PackedDim(-2, 2),
    "packed_rowwise": PackedDim(-1, 2),
}


def experts_of(words: Mapping[str, str]) -> Experts:
    """Returns what the words for the parameters of experts mean.

    Args:
        words: Words by the names of the parameters.

    Raises:
        ValueError: A word has no meaning for parameters.
    """
    for name, word in words.items():
        if word not in _OF_EXPERTS:
            raise ValueError(
                f"[smdp] tensor_parallel: style {word!r} cannot be used for parameter {name!r} of experts."
                f" Use one of: {', '.join(_OF_EXPERTS)}."
            )
    return Experts({name: _OF_EXPERTS[word] for name, word in words.items()})


def action_of(word: str, module: nn.Module, parent: nn.Module, *, is_head: bool) -> Action | None:
    """Returns what a word of a plan means for a module, or None if the module stays as it is.

    Args:
        word: One of WORDS.
        module: The module.
        parent: The module around it. If it has a `head_dim`, heads are not cut.
        is_head: Whether the module computes the logits of a language model.
    """
    head_dim = getattr(parent, "head_dim", None)
    if word == "mla_kv_a_proj":
        return LatentOutputs(parent.config.qk_rope_head_dim)
    if word in ("colwise", "packed_colwise") and is_linear(module):
        return Columns(_blocks(outputs_of(module), head_dim, 2 if word == "packed_colwise" else 1))
    if word in ("rowwise", "packed_rowwise") and is_linear(module):
        return Rows(_blocks(inputs_of(module), head_dim, 2 if word == "packed_rowwise" else 1))
    simple: dict[str, Any] = {
        "colwise": Columns(),
        "packed_colwise": Columns(),
        "colwise_gather_output": Head() if is_head else Columns(gathers=True),
        "colwise_rep": Head() if is_head else Columns(gathers=True),
        "rowwise": Rows(),
        "packed_rowwise": Rows(),
        "rowwise_split_input": Rows(splits=True),
        "rowwise_rep": Rows(splits=True),
        "embedding_rowwise": Vocabulary(),
        "embedding_colwise": Width(),
        "replicated_with_grad_allreduce": PartialGradient(),
        # Experts whose plan names none of their parameters.
        "moe_tp_experts": Experts({}),
    }
    return simple.get(word)


def _blocks(length: int, head_dim: Any, count: int) -> tuple[Block, ...]:
    each = length // count
    is_heads = count == 1 and isinstance(head_dim, int) and head_dim > 0 and each % head_dim == 0
    if not is_heads:
        return (Block(each, each),) * count
    # Keys and values may be on several ranks. If queries were, the layer behind attention would not fit.
    return (Block(each, each // head_dim, may_repeat=True),) * count
