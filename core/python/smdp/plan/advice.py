"""Which knob to turn when nothing fits."""

from __future__ import annotations

import math

from smdp import memory
from smdp.plan.search import Plan

# What helps against each kind, in the order in which to try it; {flash} and {offload} if not taken yet.
_HELP = {
    "parameters": "more ranks for the pipeline or tensor parallelism (--hosts)",
    "gradients": "more ranks for the pipeline or tensor parallelism (--hosts)",
    "optimizer": "more ranks to share optimizer states (--hosts){offload}",
    "activations": "a smaller --batch or --sequence{flash}",
    "embedding": "a smaller --batch",
    "logits": "a smaller --batch, or more microbatches",
    "transients": "a smaller --batch or --sequence{flash}, or more ranks (--hosts), as the optimizer's copy"
    " of the gradients in fp32 is one of them",
    "buckets": "smaller fusion buffers",
    "unsharded": "smaller layers, or tensor parallelism",
}


def advice(found: Plan) -> str:
    """Tell what to change, from what the nearest candidate is full of; empty if something fits."""
    if found.options:
        return ""
    if found.nearest is None:
        reasons = sorted({f"{one.what}: {one.why}" for one in found.rejected})
        return "Nothing can be laid out on these ranks:\n" + "\n".join(reasons)
    estimate = found.nearest.estimate
    stage = estimate.stages[estimate.peak_stage]
    kinds = sorted(memory.KINDS, key=lambda kind: -getattr(stage, kind))[:2]
    margin = found.cluster.margin
    more = {
        "flash": "" if found.flash_attention else ", or --flash-attention",
        "offload": "" if found.offload else ", or states in host memory (--offload)",
    }
    nearest = found.nearest.candidate.describe()
    lines = [
        f"Nothing fits {found.cluster.usable_memory / 1e9:.1f} GB ({margin:g} of the device's memory).",
        f"The nearest takes {estimate.peak / 1e9:.1f} GB: {nearest}.",
        *(
            f"{getattr(stage, kind) / 1e9:.1f} GB of it are {kind}: try {_HELP[kind].format(**more)}."
            for kind in kinds
            if getattr(stage, kind) > 0
        ),
        f"Devices of {math.ceil(estimate.peak / margin / 1e9)} GB would do (--device-memory).",
    ]
    return "\n".join(lines)
