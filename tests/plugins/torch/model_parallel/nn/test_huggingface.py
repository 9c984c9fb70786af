"""Models of transformers that tensor parallelism replaces, beside the models themselves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch_spawn import run

import smdp.torch.model_parallel as smp
from smdp.torch.model_parallel.nn.huggingface import bert, gpt2, gptj, gptneo, roberta

transformers = pytest.importorskip("transformers")

SMALL = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 23}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 23,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def models() -> dict[str, Any]:
    t = transformers
    neo = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 23, "window_size": 3}
    neo |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16}
    neo |= {"embed_dropout": 0.0, "attention_dropout": 0.0, "resid_dropout": 0.0}
    scaled = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
    return {
        "gpt2": t.GPT2LMHeadModel(t.GPT2Config(**SMALL, **NO_DROPOUT)),
        "gpt2 scaled": t.GPT2LMHeadModel(t.GPT2Config(**SMALL, **NO_DROPOUT, **scaled)),
        "gptj": t.GPTJForCausalLM(t.GPTJConfig(**SMALL, **NO_DROPOUT, rotary_dim=2)),
        "gptneo": t.GPTNeoForCausalLM(t.GPTNeoConfig(**neo)),
        "bert": t.BertForMaskedLM(t.BertConfig(**ENCODER)),
        "roberta": t.RobertaForSequenceClassification(t.RobertaConfig(**ENCODER, num_labels=3)),
    }


TRANSLATORS = {
    "gpt2": (gpt2.translate_hf_state_dict_to_smdistributed_gpt2, gpt2.translate_state_dict_to_hf_gpt2),
    "gptj": (gptj.translate_hf_gptj_state_dict_to_smdistributed_gptj, gptj.translate_state_dict_to_hf_gptj),
    "gptneo": (
        gptneo.translate_hf_state_dict_to_smdistributed_gptneo,
        gptneo.translate_state_dict_to_hf_gptneo,
    ),
    "bert": (bert.translate_hf_state_dict_to_smdistributed_bert, bert.translate_state_dict_to_hf_bert),
    "roberta": (roberta.translate_state_dict_to_smdistributed, roberta.translate_state_dict_to_hf_roberta),
}


def same(found: Any, expected: Any) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translation_and_back(name: str) -> None:
    expected = models()[name].state_dict()
    to_ours, to_theirs = TRANSLATORS[name]
    ours = to_ours(expected)
    assert any("attention.query.weight" in key for key in ours) and not any(".ln_" in key for key in ours)
    assert same(to_theirs(ours), expected)


def test_masks_of_old_versions() -> None:
    expected = models()["gpt2"].state_dict()
    to_ours, to_theirs = TRANSLATORS["gpt2"]
    old = to_theirs(to_ours(expected), max_seq_len=4)
    assert old["transformer.h.1.attn.bias"].shape == (1, 1, 4, 4)
    assert same(to_ours(old), to_ours(expected))


def batch(name: str, rank: int) -> dict[str, Any]:
    ids = torch.randint(3, 23, (2, 6), generator=torch.Generator().manual_seed(rank))
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4 + 2 * (rank % 2) :] = 0  # those of odd ranks hide nothing
    labels = torch.tensor([1, 2]) if name == "roberta" else ids
    # Two texts in one row, as scripts pack them, at another place on each rank.
    packed = {"position_ids": torch.arange(6).roll(rank + 1).expand(2, 6)} if name == "gptj" else {}
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, **packed}


def every_model(*names: str, **more: Any) -> None:
    for name in names or models():
        smp.init({"ddp": True, **more})
        torch.manual_seed(5)
        plain = models()[name]
        torch.manual_seed(5)
        with smp.tensor_parallelism(fused_softmax=True):
            copied = models()[name]
        model = smp.DistributedModel(copied)
        assert any(isinstance(each, smp.nn.DistributedTransformer) for each in model.get_module().modules())
        batches = [batch(name, rank) for rank in range(smp.dp_size())]
        whole = {key: torch.cat([each[key] for each in batches]) for key in batches[0]}
        expected = plain(**whole)
        expected.loss.backward()

        @smp.step
        def train(model: Any, **inputs: Any) -> Any:
            output = model(**inputs)
            model.backward(output["loss"])
            return output.loss, output.logits

        loss, logits = train(model, **batches[smp.dp_rank()])
        losses = smp.allgather(float(loss.reduce_mean()), smp.DP_GROUP)
        assert abs(sum(losses) / len(losses) - expected.loss.item()) < 1e-5, name
        here = expected.logits.chunk(smp.dp_size())[smp.dp_rank()]
        torch.testing.assert_close(logits.concat(), here, rtol=1e-6, atol=1e-6, msg=name)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        optimizer.step()
        smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)).step()
        state = model.state_dict()
        for to_theirs, _ in smp.state.module_manager.translate_functions:
            state = to_theirs(state)
        assert state.keys() == plain.state_dict().keys(), name
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-6, msg=f"{name} {key}")
        smp.shutdown()


def distributed(model: Any) -> Any:
    smp.state.model = None
    smp.set_tensor_parallelism(model)
    return smp.DistributedModel(model)


def arguments_and_refusals() -> None:
    smp.init({"ddp": True, "tensor_parallel_degree": 2})
    given = batch("", smp.dp_rank())
    torch.manual_seed(5)
    plain = models()["gpt2"]
    torch.manual_seed(5)
    model = distributed(models()["gpt2"])
    found, expected = (each(**given, num_items_in_batch=40) for each in (model, plain))
    torch.testing.assert_close(found.loss, expected.loss)
    for kept in (1, torch.tensor([0, 2])):
        own, theirs = (each(given["input_ids"], logits_to_keep=kept).logits for each in (model, plain))
        torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="shift_labels is not supported"):
        model(**given, shift_labels=given["labels"])
    with pytest.raises(ValueError, match=r"takes \(samples, sequence\)"):
        model(given["input_ids"], attention_mask=torch.ones(2, 1, 6, 6))
    torch.manual_seed(5)
    plain = models()["gptj"]
    model, packed = distributed(copy.deepcopy(plain)), torch.tensor([[0, 1, 2, 0, 1, 2]])
    own, theirs = (each(given["input_ids"], position_ids=packed).logits for each in (model, plain))
    torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-6)
    smp.state.model = None
    model = smp.nn.DistributedTransformerLMHead(1, 2, 4, 8, 8, 23, num_positions=0, causal_mask_size=6)
    with pytest.raises(ValueError, match="are not 0 to 5 in each sample"):
        model((given["input_ids"], None, None, packed, None))
    model = distributed(models()["bert"])
    with pytest.raises(ValueError, match="has different rows"):
        model(given["input_ids"], attention_mask=torch.zeros(6, 6).tril().expand(2, 1, 6, 6) + torch.eye(6))
    config = transformers.BertConfig(**ENCODER, is_decoder=True)
    left = distributed(transformers.BertLMHeadModel(config)).get_module()
    assert not any(isinstance(each, smp.nn.DistributedTransformer) for each in left.modules())
    smp.shutdown()


def on_two_ranks() -> None:
    every_model(tensor_parallel_degree=2, microbatches=2)  # of one sample
    arguments_and_refusals()


def in_speed_layout() -> None:
    every_model(tensor_parallel_degree=2, optimize="speed")


def in_stages() -> None:
    every_model(tensor_parallel_degree=2, partitions=2, microbatches=2)


def test_on_two_ranks() -> None:
    run(on_two_ranks)


@pytest.mark.slow
def test_in_speed_layout() -> None:
    run(in_speed_layout)


@pytest.mark.slow
def test_in_stages() -> None:
    run(in_stages, 4, timeout=300)
