"""Trainers with ModelParallel train, evaluate and predict as one process does."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import language_model as lm
import model_parallel_trainers as mp
import numpy as np
import pytest
import torch
import transformers
from transformers_spawn import run

from smdp.transformers import with_plugins

pytestmark = pytest.mark.timeout(240)


def gpt2() -> Any:
    return mp.trained(model=mp.model("GPT2"), train_dataset=lm.rows(160))


def llama() -> Any:
    """Parts of a batch have other numbers of tokens; the gradients of two batches are one step's."""
    args = mp.arguments(gradient_accumulation_steps=2, max_grad_norm=0.5, weight_decay=0.1)
    return mp.trained(args, model=mp.model("Llama"), train_dataset=mp.ragged(320))


def t5() -> Any:
    args = mp.arguments(lr_scheduler_type="cosine", warmup_steps=5)
    return mp.trained(args, model=mp.model("T5"), train_dataset=lm.rows(160))


def with_an_uneven_end() -> Any:
    """The last batch of an epoch has 6 rows, which four microbatches do not divide; the one after it 8."""
    args = mp.arguments(max_steps=4, gradient_accumulation_steps=2)
    return mp.trained(args, train_dataset=mp.ragged(30))


def of_a_stream() -> Any:
    return mp.trained(mp.arguments(max_steps=4), train_dataset=mp.Stream(48))


def of_a_dataset() -> Any:
    """Tokens as lists, of groups of a length, a stream of which is read."""
    rows = [{name: item.tolist() for name, item in row.items()} for row in mp.ragged(64)]
    data = datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=1)
    return mp.trained(mp.arguments(max_steps=4), train_dataset=data)


def by_length() -> Any:
    args = mp.arguments(max_steps=4, train_sampling_strategy="group_by_length")
    return mp.trained(args, train_dataset=mp.ragged(64))


def smoothed() -> Any:
    args = mp.arguments(max_steps=4, label_smoothing_factor=0.1)
    return mp.trained(args, train_dataset=mp.ragged(64))


def with_workers() -> Any:
    """They draw what is to be learned; on all ranks of a pipeline the same."""
    return mp.trained(mp.arguments(max_steps=4, dataloader_num_workers=1), train_dataset=mp.Masked(64))


def with_own_loss() -> Any:
    """A mean that knows nothing of the number of items."""

    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            outputs = model(input_ids=inputs["input_ids"])
            logits, labels = outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(logits, labels)
            return (loss, outputs) if return_outputs else loss

    return mp.trained(mp.arguments(max_steps=4), with_plugins(Own), train_dataset=lm.rows(64))


def with_own_optimizer() -> Any:
    model = mp.model("GPT2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return mp.trained(mp.arguments(max_steps=4), model=model, optimizers=(optimizer, None))


def recomputed() -> Any:
    return mp.trained(mp.arguments(max_steps=4, gradient_checkpointing=True))


def in_bf16() -> Any:
    return mp.trained(mp.arguments(max_steps=4, bf16=True), train_dataset=mp.ragged(64))


def in_bf16_with_own_loss() -> Any:
    """It is computed in fp32, of logits that were rounded once."""

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        logits, labels = outputs.logits[:, :-1], labels[:, 1:]
        assert logits.dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return ((logits.exp().sum(-1).log() - chosen) * labels.ne(-100)).sum() / num_items_in_batch

    args = mp.arguments(max_steps=4, bf16=True)
    return mp.trained(args, compute_loss_func=loss, train_dataset=mp.ragged(64))


def in_fp16(scale: float = 2.0**10) -> Any:
    """On a CPU, where Accelerate refuses it."""
    done = mp.trainer(mp.arguments(max_steps=4), train_dataset=mp.ragged(64))
    accelerator = done.accelerator
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    try:
        done.train()
    finally:
        accelerator.state._mixed_precision = "no"
    return done


def with_a_scale_too_large() -> Any:
    """All steps overflow on some stage, and are left out on every one."""
    done = in_fp16(2.0**40)
    assert done.accelerator.scaler.get_scale() == 2.0**36
    own = lm.model().state_dict()
    for name, parameter in done.model.named_parameters():
        assert parameter.is_meta or torch.equal(parameter, own[name])
    return done


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, modules_to_save=["ln_f"])
    return mp.trained(mp.arguments(max_steps=4), model=get_peft_model(mp.model("GPT2"), config))


def metrics(prediction: Any) -> dict[str, float]:
    labels = prediction.label_ids[:, 1:]
    counted = labels != -100
    return {
        "rows": len(labels),
        "tokens": int(counted.sum()),
        "right": float((prediction.predictions[:, :-1] == labels)[counted].mean()),
        "inputs": len(prediction.inputs),
    }


def evaluated() -> Any:
    """Rows that neither batches nor microbatches divide; the best model; callbacks; one bar."""
    seen: list[str] = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append("step")

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append("evaluate")

    args = mp.arguments(
        "evaluated",
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="right",
        per_device_eval_batch_size=8 if mp.size() < 4 else 4,
        include_for_metrics=["inputs"],
        include_num_input_tokens_seen="all",
        disable_tqdm=False,
    )
    trainer = mp.trainer(
        args,
        train_dataset=mp.ragged(64),
        eval_dataset=mp.ragged(21),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        callbacks=[Watch()],
    )
    before = trainer.evaluate()  # of a model that has not been trained
    trainer.train()
    after = trainer.evaluate(mp.ragged(5))
    predicted = trainer.predict(mp.ragged(7))
    # Rank 0 has deleted what it deletes: the others have evaluated with it since.
    kept = sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*"))
    other = mp.trainer(args)
    names = ("eval_loss", "eval_rows", "eval_tokens", "eval_right", "eval_inputs")
    entries = [before, *(entry for entry in trainer.state.log_history if "eval_rows" in entry), after]
    return {
        "evaluations": [[entry[name] for name in names] for entry in entries],
        "best": os.path.basename(trainer.state.best_model_checkpoint),
        "kept": kept,
        "predicted": predicted.predictions.tolist(),
        "test_loss": predicted.metrics["test_loss"],
        "seen": [seen.count("step"), seen.count("evaluate")],
        "counted": [trainer.state.num_input_tokens_seen, trainer.state.total_flos, trainer.state.epoch],
        "samples": trainer.get_total_train_batch_size(args),
        "unlabelled": np.shape(other.predict([{"input_ids": row["input_ids"]} for row in lm.rows(3)])[0]),
    }


FAMILIES: Mapping[str, Callable[[], Any]] = {"gpt2": gpt2, "llama": llama, "t5": t5}
WAYS: Mapping[str, Callable[[], Any]] = {
    "with_an_uneven_end": with_an_uneven_end,
    "of_a_stream": of_a_stream,
    "of_a_dataset": of_a_dataset,
    "by_length": by_length,
    "smoothed": smoothed,
    "recomputed": recomputed,
    "with_workers": with_workers,
    "with_own_loss": with_own_loss,
    "with_own_optimizer": with_own_optimizer,
    "in_bf16": in_bf16,
    "in_bf16_with_own_loss": in_bf16_with_own_loss,
    "in_fp16": in_fp16,
    **({"adapted": adapted} if importlib.util.find_spec("peft") else {}),
}


def all_ways() -> Any:
    ways = {**FAMILIES, **WAYS}
    with_a_scale_too_large()
    return {"trained": {name: mp.numbers(way()) for name, way in ways.items()}, "evaluated": evaluated()}


def of_divided_layers() -> Any:
    """One stage, whose layers are divided over two ranks."""
    os.environ["STAGES"], os.environ["TENSOR"] = "1", "2"
    names = ("smoothed", "recomputed", "with_own_loss", "in_bf16", "in_fp16")
    ways = {"gpt2": gpt2, "llama": llama, **{name: WAYS[name] for name in names}}
    return {"trained": {name: mp.numbers(way()) for name, way in ways.items()}, "evaluated": evaluated()}


def of_four_ranks() -> Any:
    """Four stages; then two replicas of two."""
    os.environ["STAGES"] = "4"
    deep = {name: mp.numbers(way()) for name, way in FAMILIES.items()}
    os.environ["STAGES"] = "2"
    some = {name: WAYS[name] for name in ("of_a_stream", "of_a_dataset", "with_own_loss")}
    os.environ["STOP_AFTER"] = "8"  # of 20 steps
    wide = {name: mp.numbers(way()) for name, way in {**FAMILIES, **some}.items()}
    return {"deep": deep, "wide": wide, "evaluated": evaluated()}


def check(found: Any, expected: Any) -> None:
    for name, (losses, norms) in found.items():
        close = 5e-2 if name.startswith(("in_bf16", "in_fp16")) else 1e-5
        count = len(losses)
        np.testing.assert_allclose(losses, expected[name][0][:count], atol=close, err_msg=name)
        np.testing.assert_allclose(
            norms, expected[name][1][:count], rtol=1e3 * close, atol=close, err_msg=name
        )
        assert losses[0] > losses[-1], name


def check_evaluation(found: Any, expected: Any, loss: float) -> None:
    assert found["counted"] == pytest.approx(expected["counted"])
    for name in ("best", "kept", "seen", "samples", "unlabelled"):
        assert found[name] == expected[name], name
    for one, other in zip(found["evaluations"], expected["evaluations"], strict=True):
        assert one[0] == pytest.approx(other[0], abs=loss)
        assert one[1:] == pytest.approx(other[1:])
    assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=loss)
    assert found["predicted"] == expected["predicted"]


@pytest.fixture(scope="module")
def alone() -> Any:
    (found,) = run(all_ways, 1)
    return found


def test_two_stages(alone: Any) -> None:
    first, second = run(all_ways, 2, timeout=200)
    check(first["trained"], alone["trained"])
    check_evaluation(first["evaluated"], alone["evaluated"], 1e-5)
    assert second == first


def test_divided_layers(alone: Any) -> None:
    first, second = run(of_divided_layers, 2, timeout=200)
    check(first["trained"], alone["trained"])
    check_evaluation(first["evaluated"], alone["evaluated"], 1e-5)
    assert second == first


@pytest.mark.slow
def test_four_ranks(alone: Any) -> None:
    first, *others = run(of_four_ranks, 4, timeout=230)
    check(first["deep"], alone["trained"])
    check(first["wide"], alone["trained"])
    # The Trainer takes the mean over batches, of which the last has repeated rows on the second replica.
    check_evaluation(first["evaluated"], alone["evaluated"], 0.1)
    assert others == [first] * 3
