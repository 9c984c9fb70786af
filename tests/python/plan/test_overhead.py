"""The time of a layer that does not depend on its size: on cores it counts, and devices hide it."""

from __future__ import annotations

from typing import Any

import pytest

from smdp import memory
from smdp.plan import Candidate, Cluster
from smdp.plan.overhead import layer_overheads
from smdp.plan.step_time import Clock
from smdp.plan.work import work_of

LAYERS, SEQUENCE = 8, 64
MODEL = memory.read_config(
    {"model_type": "gpt2", "n_layer": LAYERS, "n_embd": 384, "n_head": 6, "n_positions": 64, "vocab_size": 99}
)


def of(**options: Any) -> Candidate:
    sizes: dict[str, Any] = {"pipeline": 1, "tensor": 1, "data": 1, "microbatches": 1, "microbatch_size": 2}
    return Candidate(**{**sizes, **options})


def seconds(one: Candidate, overhead: float, **machines: Any) -> float:
    cluster = Cluster(efficiency=1.0, latency=0.0, interconnect=1e15, layer_overhead=overhead, **machines)
    return Clock(MODEL, cluster, work_of(MODEL, SEQUENCE), SEQUENCE, "fp32").step(one).total


def test_small_microbatches_are_dearer_on_cores() -> None:
    core: dict[str, Any] = {"cores_per_host": 1, "flops": 50e9}
    few, many = of(microbatches=2, microbatch_size=4), of(microbatches=8, microbatch_size=1)
    assert seconds(few, 0.0, **core) == pytest.approx(seconds(many, 0.0, **core))
    for one in (few, many):
        added = seconds(one, 1e-3, **core) - seconds(one, 0.0, **core)
        assert added == pytest.approx(one.microbatches * LAYERS * 1e-3)
    again = of(checkpointing="each")
    added = seconds(again, 3e-3, **core) - seconds(again, 0.0, **core)
    assert added == pytest.approx(LAYERS * 4e-3)  # forward, a third, runs twice


def test_a_device_works_while_operators_are_started() -> None:
    one = of(microbatches=4)
    slow, fast = {"flops": 1e9}, {"flops": 1e30}
    assert seconds(one, 1e-3, **slow) == seconds(one, 0.0, **slow)
    assert seconds(one, 1e-3, **fast) == pytest.approx(4 * LAYERS * 1e-3)


def test_what_divided_layers_and_stages_add() -> None:
    """A layer's worth for each divided layer, and four for each microbatch on a stage."""
    cluster = Cluster(layer_overhead=1e-3)

    def stage(**options: Any) -> float:
        one = of(**options)
        own = LAYERS / (one.pipeline * one.virtual_stages)
        return own * sum(layer_overheads(cluster, one, LAYERS))

    assert stage() == pytest.approx(8e-3)
    assert stage(tensor=2) == stage(tensor=4) == pytest.approx(16e-3)
    assert stage(pipeline=2) == pytest.approx((4 + 4) * 1e-3)
    assert stage(pipeline=2, virtual_stages=2) == pytest.approx((2 + 4) * 1e-3)
    assert stage(pipeline=2, tensor=2) == pytest.approx((2 * 4 + 4) * 1e-3)
