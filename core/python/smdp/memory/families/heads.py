"""Heads that decoder families share."""

from __future__ import annotations

from typing import NamedTuple

from smdp.memory.fields import Fields


class Head(NamedTuple):
    """The head that a model class adds to its family's layers."""

    extra: int  # number of parameters
    outputs: int  # number of columns of the logits
    is_tied: bool


def decoder_head(
    fields: Fields, prefix: str, language_model: str, *, hidden: int, vocabulary: int, is_tied: bool
) -> Head:
    """Returns the head of the class in `architectures`.

    Args:
        fields: The config.json.
        prefix: Prefix of the family's class names.
        language_model: Name of the class with logits, without the prefix.
        hidden: Width of the layers.
        vocabulary: Number of columns of the logits.
        is_tied: Value of `tie_word_embeddings` if the field is missing.
    """
    kinds = (
        language_model,
        "Model",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    )
    name = fields.model_class([prefix + kind for kind in kinds])
    match name.removeprefix(prefix):
        case "Model":
            return Head(0, 0, False)
        case "ForSequenceClassification":
            return Head(hidden * fields.labels(), 0, False)
        case "ForTokenClassification":
            return Head((hidden + 1) * fields.labels(), 0, False)
        case "ForQuestionAnswering":
            return Head((hidden + 1) * 2, 0, False)
    return Head(0, vocabulary, fields.flag("tie_word_embeddings", is_tied))
