"""Heads that decoder families share."""

from __future__ import annotations

from typing import NamedTuple

from smdp.memory.fields import Fields


class Head(NamedTuple):
    """What a class puts on top of its family's layers."""

    extra: int  # parameters
    outputs: int  # columns of the logits
    is_tied: bool


def decoder_head(
    fields: Fields, prefix: str, language_model: str, *, hidden: int, vocabulary: int, is_tied: bool
) -> Head:
    """Give the head that `architectures` asks for.

    Args:
        fields: The config.json.
        prefix: Of the family's class names.
        language_model: Name of the class with logits, after the prefix.
        hidden: Width of the layers.
        vocabulary: Columns of the logits.
        is_tied: Whether `tie_word_embeddings` is on where the file does not say.
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
