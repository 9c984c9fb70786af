"""What `smdp plan --emit` prints trains: layouts that use every feature, on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def train(layout: dict[str, Any], form: str, folder: str) -> None:
    """Is one rank: runs the script, and writes its last loss."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel

    import smdp.torch
    from smdp.plan import Candidate, Cluster, snippet

    assert smdp.torch.pipeline  # the script imports it before its group exists
    sizes = {"pipeline": 1, "tensor": 1, "data": 1, "microbatch_size": 2, "precision": "fp32"}
    one = Candidate(**{**sizes, **layout})
    tokens = torch.arange(one.microbatches * 2 * 16).view(-1, 16) % 64

    def make_model() -> Any:
        torch.manual_seed(0)
        shape = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": 64}
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**shape, **no_dropout, bos_token_id=0, eos_token_id=0))

    batches = ({"input_ids": tokens, "labels": tokens} for _ in range(4))
    ranks = one.pipeline * one.tensor * one.data
    cluster = Cluster(ranks_per_host=ranks, cores_per_host=2)
    if form == "trainer":
        script = snippet.trainer(one, cluster, f"disk:{folder}")
        rows = [{"input_ids": row, "labels": row} for row in tokens.repeat(one.data, 1)]
        names: dict[str, Any] = {"model": make_model(), "data": rows}
        os.chdir(folder)
        exec(script, names)
        trainer = names["trainer"]
        loss = trainer.evaluate(rows)["eval_loss"]
        Path(folder, f"{trainer.args.process_index}.json").write_text(json.dumps(loss))
        dist.destroy_process_group()
        return
    script = snippet.python(one, cluster, f"disk:{folder}")
    names = {"make_model": make_model, "batches": batches}
    exec(script, names)
    whole = 1 if one.pipeline > 1 else one.microbatches
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(whole * float(names["loss"])))
    dist.destroy_process_group()


@pytest.mark.parametrize("form", ["python", "trainer"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_printed_layout_trains(name: str, form: str, tmp_path: Path) -> None:
    layout = {**LAYOUTS[name], **({"sequence_parallel": False} if form == "trainer" else {})}
    ranks = layout.get("pipeline", 1) * layout.get("tensor", 1) * layout.get("data", 1)
    command = [
        sys.executable,
        "-m",
        "smdp",
        "run",
        "-n",
        str(ranks),
        __file__,
        json.dumps(layout),
        form,
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    # ln(64) = 4.16 before training; a few steps of AdamW have begun to learn the batch.
    assert all(3.7 < loss < 4.25 for loss in losses) and max(losses) - min(losses) < 1e-3, losses


if __name__ == "__main__":
    train(json.loads(sys.argv[1]), *sys.argv[2:])
