"""Checks that tokens are in the whole vocabulary, as layers and losses of one process do."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake


def check_in_vocabulary(what: str, tokens: Tensor, vocabulary: int, kept: Tensor | None = None) -> None:
    """Checks the bounds of tokens, which no slice of the vocabulary knows.

    On a GPU, the check does not wait for the device: the next operation that does gets the error. Compiled
    models and predictions of shapes are not checked.

    Args:
        what: What the tokens are, for the error.
        tokens: The tokens.
        vocabulary: The number of tokens of the whole vocabulary.
        kept: Which tokens are checked. The default is all.

    Raises:
        IndexError: A token on the CPU is negative, or too large.
    """
    if torch.compiler.is_compiling() or is_fake(tokens) or tokens.is_meta:
        return
    is_wrong = (tokens < 0) | (tokens >= vocabulary)
    if kept is not None:
        is_wrong &= kept
    rule = f"not valid for a vocabulary of {vocabulary} tokens. Use 0 to {vocabulary - 1}"
    if tokens.device.type != "cpu":
        torch._assert_async(~is_wrong.any(), f"[smdp] a {what} is {rule}.")
    elif is_wrong.any():
        raise IndexError(f"[smdp] {what} {tokens[is_wrong][0].item()} is {rule}.")
