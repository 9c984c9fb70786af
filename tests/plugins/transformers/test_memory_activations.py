"""What layers keep by formula, and what autograd saves of transformers' layers on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from smdp import memory

SAMPLES, TOKENS = 2, 96
EXACT = (0.988, 1.0)

# Each model's shape, and how far from the formula its layers may be: GPT-NeoX' two norms share their input,
# T5 keeps more in 16 bits.
CASES: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "GPT2": (
        {
            "n_embd": 128,
            "n_head": 4,
            "activation_function": "gelu",
            "resid_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "vocab_size": 300,
        },
        EXACT,
    ),
    "Bert": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "vocab_size": 300,
        },
        EXACT,
    ),
    "ViT": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "image_size": 64,
            "patch_size": 8,
        },
        EXACT,
    ),
    "Llama": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 352,
            "vocab_size": 300,
        },
        EXACT,
    ),
    "T5": (
        {"d_model": 128, "num_heads": 4, "d_kv": 32, "d_ff": 512, "dropout_rate": 0.0, "vocab_size": 300},
        (0.9, 1.0),
    ),
    "Qwen3": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "intermediate_size": 352,
            "vocab_size": 300,
        },
        EXACT,
    ),
    "Mixtral": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 256,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "vocab_size": 300,
        },
        EXACT,
    ),
    "GPTNeoX": (
        {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 300},
        (1.0, 1.06),
    ),
}
# Those whose scaled_dot_product_attention runs fused on a CPU. T5's has a bias; GPT-NeoX keeps its fused
# matrix whole for the sake of the values in it.
FLASH = ("GPT2", "Bert", "ViT", "Llama", "Qwen3", "Mixtral")
LAYERS = {"GPT2": "n_layer", "T5": "num_layers"}


def saved_bytes(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Give the bytes that autograd keeps of a forward, parameters excepted, each storage once."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**inputs).last_hidden_state
        total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert output.requires_grad
    return total


@pytest.mark.parametrize(
    ("family", "attention"),
    [*((family, "eager") for family in CASES), *((family, "sdpa") for family in FLASH)],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.filterwarnings("ignore")
def test_layers_keep_what_the_formula_says(family: str, attention: str, precision: str) -> None:
    options, (least, most) = CASES[family]
    torch.manual_seed(0)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    tokens = torch.randint(0, 300, (SAMPLES, TOKENS))
    inputs = (
        {"pixel_values": torch.randn(SAMPLES, 3, 64, 64, dtype=dtype)}
        if family == "ViT"
        else {"input_ids": tokens}
    )
    if family == "T5":
        inputs["decoder_input_ids"] = tokens
    totals = []
    for count in (1, 3):
        shape = {**options, LAYERS.get(family, "num_hidden_layers"): count}
        config = getattr(transformers, f"{family}Config")(**shape)
        config.use_cache = False  # it copies keys and values
        model = transformers.AutoModel.from_config(config, attn_implementation=attention).to(dtype).train()
        totals.append(saved_bytes(model, inputs))
    # Per layer, so that embedding and head cancel out.
    measured = (totals[1] - totals[0]) / 2
    architecture = memory.read_config(json.loads(config.to_json_string(use_diff=False)))
    setting = memory.Setting(
        sequence=architecture.sequence or TOKENS,
        microbatch_size=SAMPLES,
        precision=precision,
        flash_attention=attention == "sdpa",
    )
    predicted = sum(memory.layer_activations(layer, setting) for layer in architecture.layers)
    assert least <= predicted / measured <= most
