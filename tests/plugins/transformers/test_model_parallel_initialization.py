"""Models of transformers whose own half is bitwise that of a whole initialisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from model_parallel_models import MODELS, build

from smdp.torch.initialization.delayed_initialization import delayed_initialization, materialize

pytestmark = pytest.mark.filterwarnings("ignore")


def check(model: Any, whole: Any) -> None:
    names = [name for name, _ in model.named_parameters()]
    owned = set(names[: len(names) // 2])
    assert names == [name for name, _ in whole.named_parameters()]
    assert all(parameter.is_meta for parameter in model.parameters())
    materialize(model, owned.__contains__)
    for (name, mine), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert mine.dtype is theirs.dtype and mine.requires_grad == theirs.requires_grad
        assert torch.equal(mine, theirs) if name in owned else mine.is_meta, name
    buffers = dict(whole.named_buffers())
    for name, mine in model.named_buffers():
        assert torch.equal(mine, buffers[name]), name
    for mine, theirs in zip(model.modules(), whole.modules(), strict=True):
        for name, value in vars(mine).items():
            if isinstance(value, torch.Tensor):  # rotary tables as they were first
                assert torch.equal(value, vars(theirs)[name]), name


@pytest.mark.parametrize("family", MODELS)
def test_half_of_a_model(family: str) -> None:
    torch.manual_seed(3)
    whole = build(family)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with delayed_initialization():
        model = build(family)
    assert torch.equal(torch.get_rng_state(), after)
    check(model, whole)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_as_made_by_from_config_in_16_bits(family: str) -> None:
    config = build(family).config
    make = transformers.AutoModelForCausalLM.from_config
    torch.manual_seed(3)
    whole = make(config, dtype=torch.bfloat16)
    torch.manual_seed(3)
    with delayed_initialization():
        model = make(config, dtype=torch.bfloat16)
    assert model.dtype is torch.bfloat16
    check(model, whole)


@pytest.mark.parametrize("family", MODELS)
def test_a_meta_model_is_initialised_as_transformers_does(family: str) -> None:
    whole = build(family)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()
    for module in whole.modules():
        module._is_hf_initialized = False
    torch.manual_seed(3)
    whole.initialize_weights()
    with torch.device("meta"):
        model = build(family)
    torch.manual_seed(3)
    check(model, whole)
