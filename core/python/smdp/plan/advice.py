"""Advice on what to change if nothing fits."""

from __future__ import annotations

import math

from smdp import memory
from smdp.plan.search import Plan

# The remedies for each kind of memory; {flash} and {offload} are filled in if they are not in use yet.
_HELP = {
    "parameters": "more ranks for the pipeline or tensor parallelism (--hosts)",
    "gradients": "more ranks for the pipeline or tensor parallelism (--hosts)",
    "optimizer": "more ranks to share optimizer states (--hosts){offload}",
    "activations": "a smaller --batch or --sequence{flash}",
    "embedding": "a smaller --batch",
    "logits": "a smaller --batch, or more microbatches",
    "transients": "a smaller --batch or --sequence{flash}, or more ranks (--hosts), because transients"
    " include the optimizer's fp32 copy of the gradients",
    "buckets": "smaller fusion buffers",
    "unsharded": "smaller layers, or tensor parallelism",
}


def advice(found: Plan) -> str:
    """Returns advice based on what uses most of the nearest candidate's memory; empty if something fits."""
    if found.options:
        return ""
    if found.unusable:
        reasons = sorted({one.why for one in found.unusable})
        return f"{len(found.unusable)} layouts fit, but smdp does not run them:\n" + "\n".join(reasons)
    if found.nearest is None:
        reasons = sorted({f"{one.what}: {one.why}" for one in found.rejected})
        return "No layout is possible on these ranks:\n" + "\n".join(reasons)
    estimate, peak = found.nearest.estimate, found.nearest.peak
    stage = estimate.stages[estimate.peak_stage]
    kinds = sorted(memory.KINDS, key=lambda kind: -getattr(stage, kind))[:2]
    margin, is_cpu = found.cluster.margin, found.cluster.is_cpu
    more = {
        "flash": "" if found.flash_attention else ", or --flash-attention",
        "offload": ", or states on a disk (--offload disk:/scratch)" if is_cpu and not found.offload else "",
    }
    nearest = found.nearest.candidate.describe()
    lines = [
        f"Nothing fits {found.cluster.usable_memory / 1e9:.1f} GB ({margin:g} of the device's memory).",
        f"The nearest layout needs {peak / 1e9:.1f} GB: {nearest}.",
        *(
            f"{getattr(stage, kind) / 1e9:.1f} GB of this is {kind}: try {_HELP[kind].format(**more)}."
            for kind in kinds
            if getattr(stage, kind) > 0
        ),
        f"Devices with {math.ceil(peak / margin / 1e9)} GB would be sufficient (--device-memory).",
    ]
    return "\n".join(lines)
