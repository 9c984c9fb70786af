"""Options of estimate() that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from models import gpt2

from smdp import memory

MODEL = gpt2(4, 48, 4, vocabulary=100, positions=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tensors": 2},
            "unknown setting tensors; allowed: activation_loading_horizon, active_microbatches,",
        ),
        ({"__class__": 2}, "unknown setting __class__"),
        ({"tensor": "2"}, "tensor = '2' is not valid; allowed: a 64-bit integer"),
        ({"tensor": 2.5}, "tensor = 2.5 is not valid; allowed: a 64-bit integer"),
        ({"data": 2**70}, "data = 1180591620717411303424 is not valid; allowed: a 64-bit integer"),
        ({"schedule": None}, "schedule = None is not valid; allowed: a string"),
        ({"flash_attention": "yes"}, "flash_attention = 'yes' is not valid; allowed: True, False"),
        ({"stage_sizes": 4}, "stage_sizes = 4 is not valid; allowed: a list of numbers"),
        ({"in_flight": ["x"]}, "in_flight = ['x'] is not valid; allowed: a list of numbers"),
    ],
)
def test_wrong_types(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=r"^\[smdp\] ") as caught:
        memory.estimate(MODEL, sequence=16, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 0}, "sequence = 0 is not valid; allowed: an integer from 1"),
        (
            {"sequence": 65},
            "sequence = 65 is not valid; allowed: at most 64, the rows of the model's position",
        ),
        ({"pipeline": 0}, "pipeline = 0 is not valid; allowed: an integer from 1"),
        ({"pipeline": 5}, "pipeline x virtual_stages = 5 is not valid; allowed: at most the 4 layers"),
        ({"schedule": "2f2b"}, "schedule = '2f2b' is not valid; allowed: gpipe, smp_interleaved, 1f1b,"),
        ({"schedule": "zb_v"}, "virtual_stages = 1 is not valid; allowed: 2, with the schedule zb_v"),
        ({"schedule": "2f\n2b" * 99}, "schedule = '2f?2b2f?2b"),
        (
            {"schedule": "dualpipe_v", "pipeline": 2, "virtual_stages": 2, "microbatches": 3},
            "microbatches = 3 is not valid; allowed: 4 or more for dualpipe_v",
        ),
        ({"in_flight": [float("nan")]}, "in_flight = nan is not valid; allowed: a number from 0"),
        (
            {"in_flight": [1.0, 2.0]},
            "in_flight = 2 numbers is not valid; allowed: one for each of the 1 pipeline ranks",
        ),
        (
            {"checkpointing": "group_x"},
            "checkpointing = 'group_x' is not valid; allowed: none, each, group_N",
        ),
        (
            {"data": 8, "sharding_degree": 3},
            "sharding_degree = 3 is not valid; allowed: a divisor of data = 8",
        ),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        memory.estimate(MODEL, **{"sequence": 16, **options})
    assert message in str(caught.value)


def test_rotary_positions_have_no_end() -> None:
    llama = memory.read_config(
        {
            "model_type": "llama",
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 100,
            "max_position_embeddings": 64,
        }
    )
    assert memory.estimate(llama, sequence=4096).peak > memory.estimate(llama, sequence=64).peak


def test_setting_and_options_exclude_each_other() -> None:
    with pytest.raises(
        TypeError, match=r"\[smdp\] estimate\(\) got both a setting and fields of one, tensor"
    ):
        memory.estimate(MODEL, memory.Setting(sequence=16), tensor=2)


def test_model_and_setting_are_some() -> None:
    with pytest.raises(
        TypeError, match=r"\[smdp\] model = None is not valid; allowed: an Architecture or a Trace"
    ):
        memory.estimate(None, sequence=16)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\[smdp\] setting = 16 is not valid; allowed: a Setting"):
        memory.estimate(MODEL, 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_device_memory_is_a_number(value: float) -> None:
    with pytest.raises(ValueError, match=r"device_memory = "):
        memory.estimate(MODEL, sequence=16).fits(value)
    with pytest.raises(ValueError, match=r"margin = "):
        memory.estimate(MODEL, sequence=16).fits(1e9, margin=value)


@pytest.mark.parametrize("value", ["x", None, [1], pytest.param(10**5000, id="huge")])
def test_what_is_no_number_is_told(value: object) -> None:
    estimate = memory.estimate(MODEL, sequence=16)
    assert estimate.fits(40e9) and estimate.fits(40, margin=1) is False
    with pytest.raises(TypeError, match=r"^\[smdp\] device_memory = .* is not valid; allowed: a number$"):
        estimate.fits(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^\[smdp\] margin = .* is not valid; allowed: a number$"):
        estimate.fits(40e9, margin=value)  # type: ignore[arg-type]
    for call in (
        lambda: memory.even_stages(4, value),  # type: ignore[arg-type]
        lambda: memory.in_flight("1f1b", pipeline=value, rank=0, microbatches=1),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError), match=r"^\[smdp\] (stages|pipeline) = .* is not valid"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: memory.even_stages(10**12, 10**12),
            "stages = 1000000000000 is not valid; allowed: an integer from",
        ),
        (lambda: memory.parameters(None), "architecture = None is not valid; allowed: an Architecture"),  # type: ignore[arg-type]
        (
            lambda: memory.layer_activations(MODEL, memory.Setting()),
            "layer = .* is not valid; allowed: a Layers",
        ),  # type: ignore[arg-type]
        (
            lambda: memory.layer_activations(MODEL.layers[0], 1),  # type: ignore[arg-type]
            "setting = 1 is not valid; allowed: a Setting",
        ),
        (lambda: memory.state_bytes(16), "precision = 16 is not valid; allowed: a str"),  # type: ignore[arg-type]
        (
            lambda: memory.state_bytes("bf16", "\ud800"),
            "sharding = .* is not valid; allowed: a str that can be encoded",
        ),
        (lambda: memory.state_bytes("bf16", degree=1.5), "degree = 1.5 is not valid; allowed: an integer"),  # type: ignore[arg-type]
        (
            lambda: memory.in_flight(None, pipeline=1, rank=0, microbatches=1),  # type: ignore[arg-type]
            "schedule = None is not valid; allowed: a str",
        ),
    ],
)
def test_wrong_arguments_of_formulas_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^\[smdp\] {message}"):
        call()


def test_smp_interleaved_may_have_virtual_stages() -> None:
    assert (
        memory.in_flight(
            "smp_interleaved", pipeline=2, rank=0, microbatches=8, virtual_stages=2, active_microbatches=3
        )
        == 3
    )
    estimate = memory.estimate(
        MODEL, sequence=16, pipeline=2, virtual_stages=2, microbatches=8, schedule="smp_interleaved"
    )
    assert [stage.in_flight for stage in estimate.stages] == [4, 4]
