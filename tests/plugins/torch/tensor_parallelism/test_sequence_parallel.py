"""With sequence parallelism, a divided model trains as in one process, and keeps the memory of slices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from divided_models import PLAN, Model, farthest
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp import memory
from smdp.torch.tensor_parallelism.sequence_plan import sequence_plan_of

# The environment `transformers` runs these tests.
transformers = pytest.importorskip("transformers")

_VOCABULARY = 32


def llama(**options: Any) -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": _VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **heads, **options}))


def gpt2() -> nn.Module:
    rates = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=_VOCABULARY, **rates)
    )


def bart() -> nn.Module:
    """With cross-attention, layers that call divided layers themselves, and dropout between these."""
    config: Any = transformers.BartConfig(
        d_model=16, vocab_size=_VOCABULARY, decoder_start_token_id=0, activation_dropout=0.1
    )
    for side in ("encoder", "decoder"):
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32)):
            setattr(config, f"{side}_{name}", value)
    return transformers.BartForConditionalGeneration(config)


def trained(model: Any, frozen: str | None = None) -> list[float]:
    model.train()
    if frozen is not None:
        model.get_submodule(frozen).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        for _ in range(2):
            tokens = torch.randint(2, _VOCABULARY, (3, 8))
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def check(
    make: Callable[[], nn.Module], *, checkpoints: bool = False, frozen: str | None = None
) -> nn.Module:
    torch.manual_seed(0)
    alone = make().double()
    model = copy.deepcopy(alone)
    smdp.torch.tensor_parallel(model, torch.distributed.get_world_size(), sequence_parallel=True)
    if checkpoints:
        model.gradient_checkpointing_enable()
    expected, found = trained(alone, frozen), trained(model, frozen)
    assert all(abs(a - b) < 1e-6 * abs(a) for a, b in zip(expected, found, strict=True)), (expected, found)
    assert farthest(model, alone) < 1e-6
    return model


def trains_like_one_process() -> None:
    model: Any = check(llama)
    check(llama, checkpoints=True)
    check(gpt2)
    check(gpt2, frozen="transformer.h.0")
    check(bart)
    with pytest.raises(ValueError, match="a sequence of 7 tokens cannot be divided over 2"):
        model(input_ids=torch.zeros(1, 7, dtype=torch.long))
    twin: Any = copy.deepcopy(model).eval()
    with torch.no_grad():
        twin(input_ids=torch.zeros(1, 7, dtype=torch.long))
    model.eval()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 7, dtype=torch.long))


def test_two_ranks_train_like_one_process() -> None:
    run(trains_like_one_process)


def kept_bytes(model: Any, layers: nn.ModuleList, tokens: Tensor) -> int:
    """The bytes of activations that the layers keep for backward, without their parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}
    is_inside = False

    def pack(tensor: Tensor) -> Tensor:
        if is_inside and tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    def enter(*_: Any) -> None:
        nonlocal is_inside
        is_inside = True

    def leave(*_: Any) -> None:
        nonlocal is_inside
        is_inside = False

    layers[0].register_forward_pre_hook(enter)
    layers[-1].register_forward_hook(leave)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens).loss
    found: int = sum(each.untyped_storage().nbytes() for each in kept.values())
    loss.backward()
    return found


def keeps_what_the_memory_model_says() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "attention_bias": False}
    whole = llama(**sizes, mlp_bias=False, num_key_value_heads=4)
    config: Any = whole.config
    (run_of_layers,) = memory.read_config({**config.to_dict(), "model_type": "llama"}).layers
    torch.manual_seed(0)
    tokens = torch.randint(_VOCABULARY, (2, 64))
    for is_sequence in (False, True):
        model: Any = copy.deepcopy(whole)
        smdp.torch.tensor_parallel(model, 2, sequence_parallel=is_sequence)
        setting = memory.Setting(
            microbatch_size=2,
            sequence=64,
            tensor=2,
            sequence_parallel=is_sequence,
            precision="fp32",
            flash_attention=True,
        )
        expected = 2 * memory.layer_activations(run_of_layers, setting)
        found = kept_bytes(model, model.model.layers, tokens)
        assert 0.9 < found / expected < 1.1, (is_sequence, found, expected)


def test_layers_keep_what_the_memory_model_says() -> None:
    run(keeps_what_the_memory_model_says)


def test_models_that_cannot_be_divided_by_sequence_are_refused() -> None:
    model = Model()
    with pytest.raises(ValueError, match="has heads"):
        sequence_plan_of(model, smdp.torch.tensor_parallel_plan(model, 2, PLAN))
