"""A step's peak as estimated, and as torch's tracker of live tensors sees it on a CPU, in fp32."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
import transformers
from torch.distributed._tools.mem_tracker import MemTracker

from smdp import memory

SAMPLES, TOKENS = 4, 128


class Group(torch.nn.Module):
    """Layers that are rebuilt together."""

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, *positional: Any, **keyword: Any) -> torch.Tensor:
        def run(value: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                value = layer(value, *positional, **keyword)
            return value

        return torch.utils.checkpoint.checkpoint(run, hidden, use_reentrant=False)


def measured(config: transformers.GPT2Config, checkpointing: str) -> int:
    """Give the most bytes of forward and backward, with Adam's moments and gradients there already."""
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager").train()
    size = {"none": 0, "each": 1, "group_2": 2, "contiguous": config.n_layer}[checkpointing]
    if size > 0:
        layers = list(model.transformer.h)
        groups = [Group(layers[index : index + size]) for index in range(0, len(layers), size)]
        model.transformer.h = torch.nn.ModuleList(groups)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    tokens = torch.randint(0, config.vocab_size, (SAMPLES, TOKENS))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        model(input_ids=tokens, labels=tokens).loss.backward()
    return sum(of["Total"] for of in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize("checkpointing", ["none", "each", "group_2", "contiguous"])
@pytest.mark.parametrize(
    ("layers", "hidden", "vocabulary"), [(6, 128, 500), (12, 64, 300), (4, 128, 5000)], ids=str
)
@pytest.mark.filterwarnings("ignore")
def test_peak_of_a_small_gpt2(layers: int, hidden: int, vocabulary: int, checkpointing: str) -> None:
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=4,
        vocab_size=vocabulary,
        n_positions=TOKENS,
        activation_function="gelu",  # gelu_new is written out and keeps more
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
    )
    config.use_cache = False
    estimate = memory.estimate(
        memory.read_config(json.loads(config.to_json_string(use_diff=False))),
        sequence=TOKENS,
        microbatch_size=SAMPLES,
        precision="fp32",
        checkpointing=checkpointing,
    )
    assert estimate.peak == pytest.approx(measured(config, checkpointing), rel=0.02)
