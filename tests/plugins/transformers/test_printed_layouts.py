"""What `smdp plan --emit` prints trains: layouts that use every feature, on real ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers_spawn import run

from smdp.plan import Candidate, Cluster, snippet

LAYOUTS: dict[str, dict[str, Any]] = {
    "everything on a disk": {
        "data": 2,
        "microbatches": 1,
        "sharding": "zero1",
        "precision": "bf16",
        "checkpointing": "selective",
        "offload_activations": True,
        "offload_optimizer": True,
    },
    "sharded parameters": {
        "data": 2,
        "microbatches": 2,
        "sharding": "zero3",
        "precision": "bf16",
        "checkpointing": "each",
    },
    "pipeline of divided layers": {
        "pipeline": 2,
        "tensor": 2,
        "microbatches": 2,
        "precision": "fp16",
        "checkpointing": "contiguous",
        "sequence_parallel": True,
    },
}


def train() -> float:
    """Runs the script of the layout in $PRINTED_LAYOUT as one rank, and returns the last loss."""
    layout, form, folder = json.loads(os.environ["PRINTED_LAYOUT"])
    sizes = {"pipeline": 1, "tensor": 1, "data": 1, "microbatch_size": 2, "precision": "fp32"}
    one = Candidate(**{**sizes, **layout})
    tokens = torch.arange(one.microbatches * 2 * 16).view(-1, 16) % 64

    def make_model() -> GPT2LMHeadModel:
        torch.manual_seed(0)
        shape = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": 64}
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**shape, **no_dropout, bos_token_id=0, eos_token_id=0))

    cluster = Cluster(ranks_per_host=ranks_of(layout), cores_per_host=2)
    names: dict[str, Any]
    if form == "trainer":
        rows = [{"input_ids": row, "labels": row} for row in tokens.repeat(one.data, 1)]
        names = {"model": make_model(), "data": rows}
        os.chdir(folder)
        exec(snippet.trainer(one, cluster, f"disk:{folder}"), names)
        return float(names["trainer"].evaluate(rows)["eval_loss"])
    names = {
        "make_model": make_model,
        "batches": ({"input_ids": tokens, "labels": tokens} for _ in range(4)),
    }
    exec(snippet.python(one, cluster, f"disk:{folder}"), names)
    return float(names["loss"]) * (1 if one.pipeline > 1 else one.microbatches)


def ranks_of(layout: dict[str, Any]) -> int:
    return int(layout.get("pipeline", 1) * layout.get("tensor", 1) * layout.get("data", 1))


@pytest.mark.parametrize("form", ["python", "trainer"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_printed_layout_trains(name: str, form: str, tmp_path: Path) -> None:
    layout = {**LAYOUTS[name], **({"sequence_parallel": False} if form == "trainer" else {})}
    printed = json.dumps([layout, form, str(tmp_path)])
    losses = run(train, ranks_of(layout), env={"PRINTED_LAYOUT": printed})
    # ln(64) = 4.16 before training; a few steps of AdamW have begun to learn the batch.
    assert all(3.7 < loss < 4.25 for loss in losses) and max(losses) - min(losses) < 1e-3, losses
