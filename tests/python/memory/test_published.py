"""Figures that others have published, from our formulas."""

from __future__ import annotations

import pytest
from models import GIB, gpt2

from smdp import memory

# PTD-P (arXiv 2104.04473, table 1): layers, hidden, heads, 10^9 parameters. V 51200, s 2048.
PTD_P = [
    (24, 2304, 24, 1.7),
    (30, 3072, 32, 3.6),
    (36, 4096, 32, 7.5),
    (40, 6144, 48, 18.4),
    (48, 8192, 64, 39.1),
    (60, 10240, 80, 76.1),
    (80, 12288, 96, 145.6),
    (96, 16384, 128, 310.1),
    (105, 20480, 128, 529.6),
    (128, 25600, 160, 1008.0),
]


@pytest.mark.parametrize(("layers", "hidden", "heads", "billions"), PTD_P)
def test_parameters_of_ptd_p(layers: int, hidden: int, heads: int, billions: float) -> None:
    model = gpt2(layers, hidden, heads, vocabulary=51200, positions=2048)
    assert round(memory.parameters(model) / 1e9, 1) == billions
    # 12 lh^2 (1 + 13/(12h) + (V+s)/(12lh)), and the last norm, which the paper leaves out.
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    assert memory.parameters(model) == formula + 2 * hidden


# ZeRO (arXiv 1910.02054, table 1), in GB as printed.
ZERO = [
    (7.5e9, 64, (31.4, 16.6, 1.88)),
    (7.5e9, 1024, (30.1, 15.1, 0.12)),
    (128e9, 64, (536, 284, 32)),
    (128e9, 1024, (513.5, 257.8, 2.0)),
    (1e12, 64, (4187.5, 2218.8, 250)),
    (1e12, 1024, (4011.7, 2013.7, 15.6)),
]


@pytest.mark.parametrize(("elements", "ranks", "printed"), ZERO)
def test_zero_table(elements: float, ranks: int, printed: tuple[float, ...]) -> None:
    for stage, expected in enumerate(printed, start=1):
        gigabytes = elements * memory.state_bytes("fp16", f"zero{stage}", ranks).sum / 1e9
        digits = len(str(expected).partition(".")[2])
        # One unit of the last place that is printed: the paper cuts some figures and rounds others.
        assert abs(gigabytes - expected) < 10**-digits


def test_unsharded_states() -> None:
    bytes_of = {name: memory.state_bytes(name).sum for name in ("fp32", "fp16", "bf16", "amp")}
    assert bytes_of == {"fp32": 16, "fp16": 16, "bf16": 16, "amp": 20}
    assert memory.state_bytes("amp").wire == 4
    assert [size * 16 for size in (7.5, 128, 1000)] == [120, 2048, 16000]


@pytest.mark.parametrize(
    ("precision", "whole", "base", "shared"),
    [("megatron_fp16", 20, 4, 16), ("megatron_bf16", 18, 6, 12), ("fp32", 16, 8, 8)],
)
def test_bytes_of_megatrons_distributed_optimizer(precision: str, whole: int, base: int, shared: int) -> None:
    assert memory.state_bytes(precision).sum == whole
    for ranks in (1, 2, 3, 8, 64):
        assert memory.state_bytes(precision, "zero1", ranks).sum == pytest.approx(base + shared / ranks)


# Selective recomputation (arXiv 2205.05198): heads, hidden, layers, t, p, b, v; GiB of a first stage's layers
# with TP, TP + SP, TP + selective, all three, and with TP and every layer rebuilt. s 2048.
KORTHIKANTI = {
    "22B": ((64, 6144, 48, 8, 1, 4, 1), (59.25, 39.56, 29.25, 9.56, 4.50)),
    "175B": ((96, 12288, 96, 8, 8, 1, 3), (66.84, 41.41, 37.78, 12.35, 5.81)),
    "530B": ((128, 20480, 105, 8, 35, 1, 3), (114.02, 66.51, 70.59, 23.08, 10.86)),
    "1T": ((160, 25600, 128, 8, 64, 1, 1), (131.25, 76.56, 81.25, 26.56, 12.50)),
}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_first_stage_of_korthikanti(name: str) -> None:
    (heads, hidden, layers, tensor, pipeline, batch, virtual), printed = KORTHIKANTI[name]
    model = gpt2(layers, hidden, heads, vocabulary=51200, positions=2048)
    found = []
    for is_sequence_parallel, checkpointing in (
        (False, "none"),
        (True, "none"),
        (False, "selective"),
        (True, "selective"),
        (False, "each"),
    ):
        estimate = memory.estimate(
            model,
            sequence=2048,
            microbatch_size=batch,
            microbatches=2240,  # a multiple of every pipeline, as Megatron wants them
            pipeline=pipeline,
            tensor=tensor,
            virtual_stages=virtual,
            schedule="1f1b" if virtual == 1 else "interleaved_1f1b",
            sequence_parallel=is_sequence_parallel,
            checkpointing=checkpointing,
        )
        found.append(estimate.stages[0].activations / GIB)
    assert found == pytest.approx(printed, abs=0.006)
    assert 0.16 <= found[3] / found[0] <= 0.203, "the paper's factor of 5"
    assert 0.075 <= found[4] / found[0] <= 0.10


@pytest.mark.parametrize(("heads", "hidden", "share"), [(96, 12288, 0.70), (128, 20480, 0.65)])
def test_share_of_a_layer_that_selective_rebuilding_saves(heads: int, hidden: int, share: float) -> None:
    layer = gpt2(1, hidden, heads, vocabulary=51200, positions=2048).layers[0]
    whole = memory.layer_activations(layer, memory.Setting(sequence=2048))
    assert whole == 2048 * hidden * (34 + 5 * heads * 2048 / hidden)
    assert 1 - 2048 * hidden * 34 / whole == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_layer_under_tensor_and_sequence_parallelism(tensor: int) -> None:
    layer = gpt2(1, 4096, 32, vocabulary=51200, positions=2048).layers[0]
    sbh = 1024 * 3 * 4096
    scores = 5 * 32 * 1024 / 4096

    def found(is_sequence_parallel: bool, flash: bool = False) -> float:
        setting = memory.Setting(
            sequence=1024,
            microbatch_size=3,
            tensor=tensor,
            sequence_parallel=is_sequence_parallel,
            flash_attention=flash,
        )
        return memory.layer_activations(layer, setting)

    assert found(False) == pytest.approx(sbh * (10 + 24 / tensor + scores / tensor))
    assert found(True) == pytest.approx(sbh * (34 + scores) / tensor)
    assert found(True, flash=True) == pytest.approx(sbh * 34 / tensor + 4 * 1024 * 3 * 32 / tensor)
