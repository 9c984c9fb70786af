"""Units and traces of transformers' models: real ones, and ones without memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_parallel_models import MODELS, batch, build

from smdp.partition import partition
from smdp.torch.initialization.delayed_initialization import delayed_initialization
from smdp.torch.pipelining.analysis.tracing import trace
from smdp.torch.pipelining.analysis.unit_traces import trace_by_parameters
from smdp.torch.pipelining.units.units import find_units, glue_parameters

pytestmark = pytest.mark.filterwarnings("ignore")

VALUE = 2 * 16 * 32 * 4  # bytes of 2 x 16 tokens of width 32 in fp32


@pytest.mark.parametrize("family", MODELS)
def test_a_trace_of_each_family(family: str) -> None:
    model: Any = build(family)
    units = find_units(model)
    blocks = [name for name in units if name.rsplit(".", 1)[-1].isdigit()]
    assert len(blocks) == (4 if family in ("T5", "Bart", "Whisper", "Swin") else 2)
    assert not glue_parameters(model, units)
    inputs = batch(family)
    state = torch.get_rng_state()
    real = trace(model, units, (), inputs, repeats=1).by_time().trace
    assert torch.equal(torch.get_rng_state(), state)
    with delayed_initialization():
        model = build(family)
    fake = trace(model, units, (), inputs).by_time().trace
    by_parameters = trace_by_parameters(model, units)
    assert {unit.name for unit in by_parameters.units} == {unit.name for unit in real.units}
    # Inputs' rows that Mixtral sends to each expert depend on values.
    for mine, theirs in zip(fake.units, real.units, strict=True):
        assert mine.name == theirs.name and mine.cut_bytes == theirs.cut_bytes
        assert mine.parameter_bytes == theirs.parameter_bytes
        tolerance = 0.05 if family == "Mixtral" else 0.0
        assert mine.activation_bytes == pytest.approx(theirs.activation_bytes, rel=tolerance)
    for found in (real, fake, by_parameters):
        assert len(partition(found, ranks=2, microbatches=4).stages) == 2


def test_what_crosses_t5() -> None:
    model: Any = build("T5")
    found = trace(model, find_units(model), (), batch("T5"), repeats=1).shape
    cuts = {unit.name: unit.cut_bytes for unit in found.units}
    bias = 4 * 16 * 16 * 4  # positions, which the first block computes for the others
    assert cuts["encoder.block.0"] == VALUE + bias
    assert cuts["encoder.final_layer_norm"] == VALUE
    # The decoder's own bias, and the mask added to the cross attention's.
    assert cuts["decoder.block.0"] >= 2 * VALUE + bias
    assert cuts["decoder.block.1"] == VALUE
    (tied,) = found.tied
    assert tied.units == ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
