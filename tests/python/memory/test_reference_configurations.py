"""Amazon's reference configurations of its model parallel library fit in 40 GB, and not without its features.

AWS prints sizes, hosts and batches, but no shapes: those are the notebooks' and the nearest common ones. The
totals in GiB follow from a coarser recipe: 4P' + 12P'/RDP, 2u n k/t and one layer, 10 sbV/t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from models import GIB, gpt2

from smdp import memory

DEVICE = 40e9
USABLE = 39.6 * GIB  # of an A100 with 40 GB


class Reference(NamedTuple):
    layers: int
    hidden: int
    heads: int
    options: dict[str, Any]
    memory: float  # GiB with optimize="memory"
    speed: float
    unsharded: float  # without optimizer state sharding
    kept: float  # without checkpointing
    half: float  # on half of the tensor-parallel ranks


COMMON: dict[str, Any] = {
    "sequence": 512,
    "precision": "fp16",
    "sharding": "zero1",
    "checkpointing": "each",
    "schedule": "smp_interleaved",
    "sequence_parallel": True,
}
REFERENCES = {
    "10B": Reference(
        48, 4096, 32, {"microbatch_size": 40, "tensor": 4, "data": 32}, 15.4, 21.6, 42.1, 63.1, 29.9
    ),
    "30B": Reference(
        48, 7168, 64, {"microbatch_size": 32, "tensor": 8, "data": 16}, 19.6, 29.8, 58.9, 54.8, 36.6
    ),
    "60B": Reference(
        74,
        8192,
        64,
        {
            "microbatch_size": 14,
            "microbatches": 4,
            "active_microbatches": 2,
            "pipeline": 2,
            "tensor": 8,
            "data": 16,
        },
        18.4,
        26.0,
        57.7,
        44.3,
        34.2,
    ),
}


def estimate(name: str, **changes: Any) -> memory.Estimate:
    shape = REFERENCES[name]
    model = gpt2(shape.layers, shape.hidden, shape.heads, vocabulary=50000, positions=1024)
    return memory.estimate(model, **{**COMMON, **shape.options, **changes})


@pytest.mark.parametrize("name", REFERENCES)
def test_fits(name: str) -> None:
    found = estimate(name)
    assert found.fits(DEVICE)
    assert found.peak / GIB == pytest.approx(REFERENCES[name].memory, rel=0.05)


@pytest.mark.parametrize("name", REFERENCES)
def test_optimized_for_speed_fits(name: str) -> None:
    found = estimate(name, sequence_parallel=False)
    assert found.fits(USABLE)
    assert found.peak / GIB == pytest.approx(REFERENCES[name].speed, rel=0.05)


@pytest.mark.parametrize("name", REFERENCES)
def test_does_not_fit_without_optimizer_state_sharding(name: str) -> None:
    found = estimate(name, sharding="none")
    assert not found.fits(DEVICE, margin=1)
    stage = found.stages[found.peak_stage]
    # The hand-made total leaves out the step's fp32 copy of the gradients.
    without_copy = found.peak - stage.transients
    assert without_copy / GIB < REFERENCES[name].unsharded < found.peak / GIB
    assert without_copy / GIB == pytest.approx(REFERENCES[name].unsharded, rel=0.05)


@pytest.mark.parametrize("name", REFERENCES)
def test_does_not_fit_without_checkpointing(name: str) -> None:
    found = estimate(name, checkpointing="none")
    assert not found.fits(DEVICE, margin=1)
    assert found.peak / GIB == pytest.approx(REFERENCES[name].kept, rel=0.05)


@pytest.mark.parametrize("name", REFERENCES)
def test_on_half_of_the_tensor_parallel_ranks_only_the_smallest_fits_within_the_margin(name: str) -> None:
    options = REFERENCES[name].options
    found = estimate(name, tensor=options["tensor"] // 2, data=2 * options["data"])
    assert found.fits(USABLE, margin=1)
    assert found.fits(USABLE) == (name == "10B")
    assert found.peak / GIB == pytest.approx(REFERENCES[name].half, rel=0.05)
