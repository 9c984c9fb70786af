"""config.json files that are wrong: one line that names the field, its value and what is allowed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import smdp
from smdp import memory
from smdp.memory.families import FAMILIES

_DECODER: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
FILES: dict[str, dict[str, Any]] = {
    "bert": {**_DECODER, "max_position_embeddings": 64},
    "gpt2": {"vocab_size": 100, "n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "gpt_neox": _DECODER,
    "llama": _DECODER,
    "mistral": _DECODER,
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": _DECODER,
    "qwen2_moe": {**_DECODER, **_EXPERTS, "shared_expert_intermediate_size": 30},
    "qwen3": _DECODER,
    "qwen3_moe": {**_DECODER, **_EXPERTS},
    "t5": {"vocab_size": 100, "d_model": 48, "d_kv": 12, "d_ff": 100, "num_layers": 3, "num_heads": 4},
    "vit": {
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
}


def test_every_family_has_a_file_here() -> None:
    assert set(FILES) == set(FAMILIES)


@pytest.mark.parametrize("family", FILES)
def test_every_family_is_read_and_estimated(family: str) -> None:
    model = memory.read_config({"model_type": family, **FILES[family]})
    assert model.name == family
    assert memory.parameters(model) > 10_000
    sequence = {} if family == "vit" else {"sequence": 32}
    for options in (
        {"pipeline": 2},
        {"tensor": 2, "sequence_parallel": True},
        {"data": 4, "sharding": "zero3"},
    ):
        whole = memory.estimate(model, **sequence)
        part = memory.estimate(model, **sequence, **options)
        assert 0 < part.stages[0].parameters < whole.stages[0].parameters
        assert all(
            sum(getattr(stage, kind) for kind in memory.KINDS) == pytest.approx(stage.total)
            for stage in part.stages
        )


@pytest.mark.parametrize("family", FILES)
def test_every_field_that_sizes_need_is_asked_for(family: str) -> None:
    optional = {"intermediate_size"} if family.endswith("_moe") else set()
    if family in ("bert", "gpt_neox", "llama"):
        optional = {"num_key_value_heads"}
    for field in FILES[family].keys() - optional:
        values = {"model_type": family, **FILES[family]}
        del values[field]
        with pytest.raises(smdp.ConfigError) as caught:
            memory.read_config(values)
        assert str(caught.value).startswith(f"[smdp] config lacks the field {field}; allowed: ")
        for wrong in (0, -1, "12", 1.5, True, [], 2**70):
            with pytest.raises(smdp.ConfigError) as caught:
                memory.read_config({**values, field: wrong})
            assert str(caught.value).startswith("[smdp] ")
            assert field in str(caught.value) and "allowed: " in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", {"model_type": "opt"}, "model_type='opt' is not valid; allowed: bert, gpt2"),
        ("gpt2", {"model_type": None}, "config lacks the field model_type; allowed: bert, gpt2"),
        ("gpt2", {"n_head": 5}, "n_embd='48' is not valid; allowed: a multiple of the 5 heads"),
        ("gpt2", {"resid_pdrop": 2}, "resid_pdrop='2' is not valid; allowed: a number from 0 to 1"),
        (
            "gpt2",
            {"tie_word_embeddings": "no"},
            "tie_word_embeddings='no' is not valid; allowed: true, false",
        ),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention='True' is not valid; allowed: false"),
        ("gpt2", {"architectures": ["GPT3"]}, "a list that begins with one of GPT2LMHeadModel, GPT2Model"),
        (
            "llama",
            {"num_key_value_heads": 3},
            "num_key_value_heads='3' is not valid; allowed: a divisor of the 4",
        ),
        (
            "llama",
            {"hidden_size": 2**30, "head_dim": 8},
            "hidden = 1073741824 is not valid; allowed: an integer",
        ),
        (
            "mixtral",
            {"num_experts_per_tok": 5},
            "num_experts_per_tok='5' is not valid; allowed: an integer from 1 to 4",
        ),
        (
            "qwen3_moe",
            {"mlp_only_layers": [-1]},
            "mlp_only_layers='[-1]' is not valid; allowed: a list of non-negative integers",
        ),
        (
            "t5",
            {"feed_forward_proj": "swi-glu"},
            "feed_forward_proj='swi-glu' is not valid; allowed: NAME or gated",
        ),
        (
            "vit",
            {"image_size": [32]},
            "image_size='[32]' is not valid; allowed: an integer of at least 1, or a list of two",
        ),
        ("vit", {"patch_size": 64}, "patch_size='64' is not valid; allowed: at most the image_size, 32 x 32"),
        (
            "bert",
            {"architectures": ["BertForSequenceClassification"], "id2label": 3},
            "id2label='3' is not valid; allowed: an object",
        ),
    ],
)
def test_message(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(smdp.ConfigError) as caught:
        memory.read_config({"model_type": family, **FILES[family], **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(smdp.ConfigError, match=r"cannot read .*config\.json: "):
        memory.read_config(path)
    for text, message in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "contains a list; allowed: a JSON object"),
        ("{}", "lacks the field model_type"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(smdp.ConfigError, match=message):
            memory.read_config(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(smdp.ConfigError, match="cannot read"):
        memory.read_config(path)
    path.write_text(json.dumps({"model_type": "gpt2", **FILES["gpt2"]}), encoding="utf-8")
    assert memory.parameters(memory.read_config(tmp_path)) == memory.parameters(memory.read_config(str(path)))


NASTY = (
    None,
    True,
    0,
    1,
    -1,
    3,
    2**31,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "12",
    [],
    [1, 2],
    {},
    {"a": 1},
)


def test_no_config_crashes_the_reader() -> None:
    """SMDP_FUZZ_ROUNDS sets how many are tried."""
    rng = random.Random(os.environ.get("SMDP_FUZZ_SEED", "2"))
    read = 0
    messages = []
    for _ in range(int(os.environ.get("SMDP_FUZZ_ROUNDS", "4000"))):
        family = rng.choice(sorted(FILES))
        values: dict[str, Any] = {"model_type": family, **FILES[family]}
        for _ in range(rng.randint(0, 2)):
            values[rng.choice([*values, "architectures", "id2label", "head_dim", "n_inner"])] = rng.choice(
                NASTY
            )
        try:
            model = memory.read_config(values)
            sequence = model.sequence or 16
            estimate = memory.estimate(model, sequence=sequence, flash_attention=True)
            assert estimate.peak > 0
            read += 1
        except (smdp.ConfigError, ValueError) as error:
            messages.append(str(error))
    assert read > 1000 and len(messages) > 1000
    assert [message for message in messages if not message.startswith("[smdp] ")] == []


@pytest.mark.parametrize("source", [None, 3, b"config.json", pytest.param(10**5000, id="huge")])
def test_what_is_no_source_is_told(source: object) -> None:
    with pytest.raises(
        TypeError, match=r"^\[smdp\] source = .* is not valid; allowed: a path, or the content of"
    ):
        memory.read_config(source)  # type: ignore[arg-type]


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(smdp.ConfigError, match=r"cannot read .*null byte"):
        memory.read_config("a\0b")


# Python's own reader has an error of its own for more than 4300 digits, which names no field.
def test_a_number_of_many_digits_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = json.dumps({"model_type": "gpt2", **FILES["gpt2"]})
    path.write_text(text.replace('"n_embd": 48', '"n_embd": ' + "1" * 5000))
    with pytest.raises(smdp.ConfigError, match="n_embd='inf' is not valid; allowed: an integer from 1"):
        memory.read_config(path)
    with pytest.raises(smdp.ConfigError, match="n_embd='an int of 16610 bits' is not valid"):
        memory.read_config({"model_type": "gpt2", **FILES["gpt2"], "n_embd": 10**5000})
