"""Adapters of peft in divided models: LoRA trains as in one process, other kinds are errors."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
import torch
from beside_one_process import farthest
from peft import IA3Config, LoraConfig, get_peft_model
from tensor_parallel_models import InDouble, made
from transformers_spawn import run

import smdp.torch

pytestmark = pytest.mark.filterwarnings("ignore")

# Packed columns, keys that all ranks hold, a layer behind attention that is in no region, latent attention.
FAMILIES = ("GPT2", "GPTBigCode", "Bert", "DeepseekV2")


def adapted(model: Any, **options: Any) -> Any:
    options = {"target_modules": "all-linear", "lora_dropout": 0.1, "init_lora_weights": False, **options}
    if hasattr(model.config, "n_routed_experts"):
        options |= {"target_modules": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]}
    return get_peft_model(model, LoraConfig(r=4, **options)).double()


def train() -> dict[str, list[float]]:
    torch.distributed.init_process_group("smdp")
    torch.set_default_dtype(torch.float64)
    found = {}
    for family in FAMILIES:
        torch.manual_seed(0)
        alone = adapted(made(family))
        model = smdp.torch.tensor_parallel(copy.deepcopy(alone), 2)
        with InDouble():
            found[family] = [*farthest(model, alone, family, 2)]
        both = [each.merge_and_unload().eval()(**_TEXT)[0] for each in (model, alone)]
        found[family].append((both[0] - both[1]).abs().max().item())
    refuses()
    return found


_TEXT = {"input_ids": torch.arange(3, 19).view(2, 8)}


def refuses() -> None:
    """Each of these would compute with slices, or write them."""
    divided = smdp.torch.tensor_parallel(made("GPT2"), 2)
    for words, call in (
        ("before tensor_parallel()", lambda: divided.resize_token_embeddings(200)),
        ("save_safetensors(path, model)", lambda: divided.save_pretrained(tempfile.gettempdir())),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert words in str(caught.value)
    late = get_peft_model(divided, LoraConfig(r=4, target_modules=["c_attn"]))
    with pytest.raises(RuntimeError, match=r"put around a layer .* first, for example by get_peft_model"):
        late(**_TEXT)
    for model, words in (
        (get_peft_model(made("GPT2"), IA3Config(task_type="CAUSAL_LM")), "type IA3"),
        (adapted(made("GPT2"), use_dora=True), "use_dora = False"),
        (adapted(made("GPT2"), target_modules=["wte"]), "around linear layers"),
    ):
        with pytest.raises(ValueError, match=words):
            smdp.torch.tensor_parallel(model, 2)


def test_lora_trains_like_one_process_or_is_refused() -> None:
    results = run(train, 2)
    for family in FAMILIES:
        assert max(max(rank[family]) for rank in results) < 1e-9, (family, results)
