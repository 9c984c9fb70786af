"""Losses and gradients of models that divide by the number of items, and of those that do not."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import numpy as np
import pytest
import torch
import transformers
from transformers_spawn import run

from smdp.transformers import DataParallel, with_plugins

SMALL = {
    "hidden_size": 16,
    "embedding_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": lm.LENGTH,
    "vocab_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}


class ByHand(torch.nn.Module):
    """Takes the number out of torch, where nobody sees what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 256)

    def forward(self, input_ids: Any, labels: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        logits = self.embedding(input_ids).flatten(0, 1)
        reduction = "mean" if not kwargs else "sum"
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction=reduction)
        return {"loss": loss / kwargs["num_items_in_batch"].item() if kwargs else loss}


class Passing(ByHand):
    """Hands the number on to a model that ignores it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SMALL))
        del self.embedding

    def forward(self, input_ids: Any, labels: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.inner(input_ids=input_ids, labels=labels, **kwargs).loss}


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made: dict[str, Any] = {
        "gpt2": lm.model,
        "by_hand": ByHand,
        "passing": Passing,
        "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SMALL)),
        "bert_lm": lambda: transformers.BertLMHeadModel(transformers.BertConfig(**SMALL, is_decoder=True)),
        "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL)),
    }
    return made[name]()


def trained() -> Any:
    """The losses and norms of gradients of three steps of two batches each, and an evaluation before them."""
    name = os.environ["MODEL"]
    rows = lm.rows(64)
    if name == "bert":
        rows = [{"input_ids": row["input_ids"], "labels": row["labels"][0] % 2} for row in rows]
    args = lm.arguments(4, gradient_accumulation_steps=2, max_steps=3)
    trainer = lm.trainer(args, model=model(name), train_dataset=rows, eval_dataset=rows[:8])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return [before, *lm.losses(trainer), *norms], trainer.model_accepts_loss_kwargs


@pytest.mark.parametrize(
    ("name", "divides"),
    [
        ("gpt2", True),
        ("by_hand", True),
        ("passing", False),
        ("bert", False),
        # As GPT-2 and BERT above.
        pytest.param("bert_lm", True, marks=pytest.mark.slow),
        pytest.param("albert", False, marks=pytest.mark.slow),
    ],
)
def test_equals_one_process(name: str, divides: bool) -> None:
    ((alone, found),) = run(trained, 1, env={"MODEL": name})
    assert found == divides
    assert 0 < alone[0] < 8 and alone[1] == pytest.approx(alone[0], rel=0.2), alone  # neither is doubled
    for numbers, found in run(trained, 2, env={"MODEL": name}):
        assert found == divides
        np.testing.assert_allclose(numbers, alone, rtol=1e-4)


def with_own_losses() -> Any:
    """A function for the loss, or a Trainer that computes it, gets the number as before."""
    numbers = []

    def own(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        numbers.append(float(num_items_in_batch))
        flat = outputs["logits"].flatten(0, 1), labels.flatten()
        return torch.nn.functional.cross_entropy(*flat, reduction="sum") / num_items_in_batch

    class Computing(transformers.Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = own(outputs, labels, num_items_in_batch) * self.accelerator.num_processes
            return (loss, outputs) if return_outputs else loss

    given = lm.trainer(lm.arguments(max_steps=3), model=model("albert"), compute_loss_func=own)
    computing = lm.trainer(lm.arguments(max_steps=3), with_plugins(Computing), model=model("albert"))
    for trainer in (given, computing):
        trainer.train()
        assert trainer.model_accepts_loss_kwargs
    assert numbers == [8.0 * lm.LENGTH] * 6, numbers
    assert lm.losses(given) == lm.losses(computing)
    return lm.losses(given)


def test_own_losses() -> None:
    (alone,) = run(with_own_losses, 1)
    for losses in run(with_own_losses, 2):
        np.testing.assert_allclose(losses, alone, atol=1e-5)


def evaluated_before() -> Any:
    """Ranks learn together, also after an evaluation; in mixed precision, too, and when trained again."""
    options = {
        "bf16": {"bf16": True},
        "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    }
    args = lm.arguments(max_steps=3, **options.get(os.environ["WAY"], {}))
    trainer = lm.trainer(args, model=lm.model(n_layer=1), plugins=[DataParallel()])
    if os.environ["EVALUATED"] == "yes":
        trainer.evaluate()
    trainer.train()
    once = lm.weights_hash(trainer.model)
    trainer.evaluate()
    trainer.train()
    return [once, lm.weights_hash(trainer.model)]


@pytest.mark.parametrize("way", ["plain", "bf16", pytest.param("compiled", marks=pytest.mark.slow)])
def test_evaluation_before_training(way: str) -> None:
    first, second = run(evaluated_before, 2, env={"WAY": way, "EVALUATED": "yes"})
    assert first == second
    assert first == run(evaluated_before, 2, env={"WAY": way, "EVALUATED": "no"})[0]
