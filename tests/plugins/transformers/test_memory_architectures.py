"""Parameters of config.json files as the memory model counts them, and as transformers' classes have them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
import transformers

from smdp import memory

DECODER = (
    "Model",
    "ForCausalLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
HEADS = {
    "GPT2": (
        "LMHeadModel",
        "Model",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    ),
    "Bert": (
        "ForMaskedLM",
        "ForPreTraining",
        "LMHeadModel",
        "Model",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForNextSentencePrediction",
        "ForMultipleChoice",
    ),
    "T5": ("ForConditionalGeneration", "Model", "EncoderModel"),
    "ViT": ("ForImageClassification", "Model", "ForMaskedImageModeling"),
    **dict.fromkeys(("GPTNeoX", "Llama", "Mistral", "Mixtral"), DECODER),
    **dict.fromkeys(("Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe"), DECODER),
}

# Shapes that people train; what is not said is the class's default, which is a real model's as well.
REAL: list[tuple[str, dict[str, Any], float]] = [
    ("GPT2", {}, 124.4e6),
    ("GPT2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1557.6e6),
    ("GPTNeoX", {}, 20554.6e6),
    ("Llama", {}, 6738.4e6),
    (
        "Llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
        8030.3e6,
    ),
    ("Mistral", {}, 7241.7e6),
    ("Mixtral", {}, 46702.8e6),
    ("Bert", {}, 109.5e6),
    ("T5", {}, 60.5e6),
    ("ViT", {"num_labels": 1000}, 86.6e6),
]


def counted(name: str, config: Any) -> int:
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    return sum(parameter.numel() for parameter in model.parameters())


def read(name: str, config: Any) -> float:
    values = json.loads(config.to_json_string(use_diff=False))
    return memory.parameters(memory.read_config({**values, "architectures": [name]}))


@pytest.mark.parametrize(
    ("family", "options", "known"), REAL, ids=lambda value: value if isinstance(value, str) else ""
)
def test_real_shapes(family: str, options: dict[str, Any], known: float) -> None:
    config = getattr(transformers, f"{family}Config")(**options)
    name = family + HEADS[family][1 if HEADS[family] is DECODER else 0]
    if family == "Bert":
        name = "BertModel"  # its 110 M are without a head
    assert read(name, config) == counted(name, config) == pytest.approx(known, rel=1e-3)


def random_options(family: str, rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([2, 4, 6])
    hidden = heads * 2 * rng.randint(2, 9)
    layers, vocabulary, ffn = rng.randint(1, 5), rng.randint(60, 300), rng.randint(8, 90)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if family == "GPT2":
        inner = rng.choice([None, ffn])
        shape = {
            "n_embd": hidden,
            "n_head": heads,
            "n_layer": layers,
            "n_inner": inner,
            "n_positions": rng.randint(1, 64),
        }
        return {**shape, "vocab_size": vocabulary, "tie_word_embeddings": rng.random() < 0.5, **special}
    if family == "T5":
        return {
            "d_model": hidden,
            "d_kv": rng.randint(2, 20),
            "d_ff": ffn,
            "num_heads": heads,
            "num_layers": layers,
            "num_decoder_layers": rng.choice([None, rng.randint(1, 4)]),
            "vocab_size": vocabulary,
            "relative_attention_num_buckets": rng.choice([8, 32]),
            "feed_forward_proj": rng.choice(["relu", "gated-gelu"]),
        }
    shape = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
    }
    if family == "ViT":
        patch = rng.choice([4, 8])
        image = {
            "image_size": patch * rng.randint(1, 6),
            "patch_size": patch,
            "encoder_stride": rng.randint(1, 6),
        }
        return {
            **shape,
            **image,
            "num_channels": rng.choice([1, 3]),
            "qkv_bias": rng.random() < 0.5,
            "num_labels": 7,
        }
    shape |= {"vocab_size": vocabulary, "tie_word_embeddings": rng.random() < 0.5, **special}
    if family == "Bert":
        return shape | {"max_position_embeddings": rng.randint(8, 64), "type_vocab_size": rng.randint(1, 4)}
    if family == "GPTNeoX":
        return shape | {"attention_bias": rng.random() < 0.5}
    shape["num_key_value_heads"] = rng.choice([1, heads // 2, heads])
    if family != "Qwen2Moe":
        shape["head_dim"] = 2 * rng.randint(2, 9)
    if family in ("Llama", "Qwen3", "Qwen3Moe"):
        shape["attention_bias"] = rng.random() < 0.5
    if family == "Llama":
        shape["mlp_bias"] = rng.random() < 0.5
    if family == "Mixtral":
        shape["num_local_experts"] = rng.randint(2, 5)
    if family in ("Qwen2Moe", "Qwen3Moe"):
        shape |= {
            "num_experts": rng.randint(4, 8),
            "moe_intermediate_size": rng.randint(4, 40),
            "num_experts_per_tok": 2,
        }
        shape |= {"decoder_sparse_step": rng.randint(1, 3), "mlp_only_layers": rng.sample(range(6), 2)}
    if family == "Qwen2Moe":
        shape |= {"shared_expert_intermediate_size": rng.randint(4, 40), "qkv_bias": rng.random() < 0.5}
    return shape


@pytest.mark.parametrize("family", HEADS)
@pytest.mark.filterwarnings("ignore")
def test_random_shapes_and_every_head(family: str) -> None:
    rng = random.Random(family)
    for _ in range(6):
        options = random_options(family, rng)
        config = getattr(transformers, f"{family}Config")(**options)
        for head in HEADS[family]:
            assert read(family + head, config) == counted(family + head, config), (family + head, options)
