"""What the text examples train: a byte-level language model, and the text of Python's documentation."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 128


def make_model() -> GPT2LMHeadModel:
    """About 5 million parameters, the same on every rank."""
    torch.manual_seed(1)
    shape = {"n_embd": 256, "n_layer": 6, "n_head": 8, "n_positions": LENGTH, "vocab_size": 256}
    return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))


def make_rows() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Rows of bytes of real English: for training, and one in twenty held out."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)
    items = [{"input_ids": row, "labels": row} for row in rows]
    return [item for i, item in enumerate(items) if i % 20], items[::20]
