"""Memory of the fullest rank, from smdp's own memory model."""

from __future__ import annotations

import matplotlib.pyplot as plt
from directives import benchmark_data

from smdp import memory

CONFIG = benchmark_data.FOLDER.parent / "examples" / "configs" / "gpt2_10b.json"
RANKS = [1, 2, 4, 8, 16, 32, 64]
BATCH = 64
RANKS_PER_HOST = 8
PARAMETERS = 40e6
PARTS = {
    "parameters": ("#1e3a8a", ("parameters", "unsharded")),
    "gradients": ("#3b82f6", ("gradients", "buckets")),
    "optimizer": ("#93c5fd", ("optimizer",)),
    "activations and temporary tensors": ("#f59e0b", ("activations", "logits", "embedding", "transients")),
}


def stacks() -> None:
    """Draws all parts for a GPT-2 of 10 billion parameters."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), sharey=True, layout="constrained")
    model = memory.read_config(str(CONFIG))
    for axis, (title, options) in zip(
        axes,
        (
            ("data parallel", lambda ranks: {"data": ranks}),
            ("optimizer sharded (zero1)", lambda ranks: {"data": ranks, "sharding": "zero1"}),
            (
                "pipeline, up to 16 stages",
                lambda ranks: {"pipeline": min(ranks, 16), "data": max(1, ranks // 16), "sharding": "zero1"},
            ),
        ),
        strict=True,
    ):
        bottom = [0.0] * len(RANKS)
        estimates = []
        for ranks in RANKS:
            setting = options(ranks)
            microbatches = BATCH // setting["data"]
            found = memory.estimate(
                model,
                sequence=512,
                microbatch_size=1,
                microbatches=microbatches,
                precision="bf16",
                checkpointing="each",
                **setting,
            )
            estimates.append(found.stages[found.peak_stage])
        for name, (color, fields) in PARTS.items():
            values = [sum(getattr(one, field) for field in fields) / 2**30 for one in estimates]
            axis.bar(range(len(RANKS)), values, 0.75, bottom=bottom, color=color, label=name)
            bottom = [low + value for low, value in zip(bottom, values, strict=True)]
        axis.axhline(80e9 / 2**30, color="k", linestyle="--", linewidth=1)
        axis.set_xticks(range(len(RANKS)), RANKS)
        axis.set_xlabel("ranks")
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel("GiB of the fullest rank")
    axes[2].text(6.4, 80e9 / 2**30 + 3, "a device of 80 GB", ha="right", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="outside lower center")


def optimizer_state() -> None:
    """Draws what AdamW keeps for each scope of a sharded optimizer."""
    _, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for label, color, line, degrees in (
        ("unsharded", "#94a3b8", "o-", [1 for _ in RANKS]),
        ('scope="host", 8 ranks per host', "#93c5fd", "o-", [min(ranks, RANKS_PER_HOST) for ranks in RANKS]),
        ('scope="world"', "#1e3a8a", "o--", RANKS),
    ):
        kept = [
            memory.state_bytes("fp32", "zero1", degree).optimizer * PARAMETERS / 1e6 for degree in degrees
        ]
        axis.loglog(RANKS, kept, line, color=color, label=label, markersize=4)
    axis.set_xticks(RANKS, RANKS)
    axis.set_yticks([5, 20, 80, 320], [5, 20, 80, 320])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.set_xlabel("ranks")
    axis.set_ylabel("MB of state on each rank")
    axis.legend()
