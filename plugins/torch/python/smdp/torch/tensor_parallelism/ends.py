"""What happens to the embedding and the head of a language model."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.embeddings import Vocabulary
from smdp.torch.tensor_parallelism.actions.linears import Head
from smdp.torch.tensor_parallelism.layers.linear import is_linear


def head_of(model: Any) -> nn.Module | None:
    """Returns the module that computes the logits of a language model, or None."""
    found = _module(model, "get_output_embeddings")
    return found if found is not None and is_linear(found) else None


def actions_on_ends(model: Any) -> dict[str, Action]:
    """Returns what happens to the head, the embedding, and all modules that share their weights.

    Models without a head keep their embedding whole.
    """
    head = head_of(model)
    if head is None:
        return {}
    embedding = _module(model, "get_input_embeddings")
    weights = {id(each.weight) for each in (head, embedding) if isinstance(each, (nn.Linear, nn.Embedding))}
    found: dict[str, Action] = {}
    for name, module in model.named_modules():
        if module is head:
            found[name] = Head()
        elif isinstance(module, nn.Embedding) and id(module.weight) in weights:
            # Encoder and decoder may have an embedding each, with the same weight.
            found[name] = Vocabulary()
    return found


def _module(model: Any, getter: str) -> nn.Module | None:
    try:
        found = getattr(model, getter)()
    except (AttributeError, NotImplementedError):  # a model with images only, for example
        return None
    return found if isinstance(found, nn.Module) else None
