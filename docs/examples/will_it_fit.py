"""Amazon's three reference configurations: what they take of 40 GB, and what without which feature.

python docs/examples/will_it_fit.py
"""

from __future__ import annotations

from typing import Any

from smdp import memory

DEVICE = 40e9  # bytes of an A100
GIB = 2**30

# Layers, hidden, heads; then how AWS trains it on hosts of 8 ranks.
CONFIGURATIONS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "10B, 16 hosts": (48, 4096, 32, {"tensor": 4, "data": 32, "microbatch_size": 40}),
    "30B, 16 hosts": (48, 7168, 64, {"tensor": 8, "data": 16, "microbatch_size": 32}),
    "60B, 32 hosts": (
        74,
        8192,
        64,
        {
            "pipeline": 2,
            "tensor": 8,
            "data": 16,
            "microbatch_size": 14,
            "microbatches": 4,
            "active_microbatches": 2,
        },
    ),
}
ALL: dict[str, Any] = {
    "sequence": 512,
    "precision": "fp16",
    "schedule": "smp_interleaved",
    "sharding": "zero1",
    "checkpointing": "each",
    "sequence_parallel": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as AWS trains it": {},
    "optimized for speed": {"sequence_parallel": False},
    "optimizer state not sharded": {"sharding": "none"},
    "no checkpointing": {"checkpointing": "none"},
}


def main() -> None:
    print(f"{'GiB of the fullest rank':29}{'states':>8}{'kept':>8}{'other':>8}{'total':>8}")
    for name, (layers, hidden, heads, options) in CONFIGURATIONS.items():
        config = {
            "n_layer": layers,
            "n_embd": hidden,
            "n_head": heads,
            "n_positions": 1024,
            "vocab_size": 50000,
        }
        model = memory.read_config({"model_type": "gpt2", **config})
        print(f"{name}: {memory.parameters(model) / 1e9:.1f} * 10^9 parameters")
        for variant, change in VARIANTS.items():
            found = memory.estimate(model, **{**ALL, **options, **change})
            stage = found.stages[found.peak_stage]
            states = stage.parameters + stage.gradients + stage.optimizer
            kept = stage.activations + stage.embedding + stage.logits
            parts = [states, kept, stage.total - states - kept, stage.total]
            fits = "fits" if found.fits(DEVICE) else "no" if found.peak > DEVICE else "above the margin"
            print(f"  {variant:27}" + "".join(f"{part / GIB:8.1f}" for part in parts) + f"  {fits}")


if __name__ == "__main__":
    main()
