"""`smp.nn.huggingface.roberta`: RoBERTa with a distributed encoder."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel.nn.huggingface.encoders import FAMILY, NAMES
from smdp.torch.model_parallel.nn.huggingface.families import State


def translate_hf_state_dict_to_smdistributed_roberta(state_dict: State) -> dict[str, Any]:
    """Returns a whole state dict with the names of smp.nn, given one of Hugging Face's RoBERTa."""
    return NAMES.to_ours(state_dict)


def translate_state_dict_to_hf_roberta(state_dict: State, max_seq_len: int | None = None) -> dict[str, Any]:
    """Returns a whole state dict of Hugging Face's RoBERTa, given one with the names of smp.nn.

    Args:
        state_dict: The result of `model.state_dict()`.
        max_seq_len: Has no effect, because the model has no causal masks.
    """
    return NAMES.to_theirs(state_dict)


translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta

CLASSES = {"RobertaEncoder": FAMILY}
