"""Trainers with DataParallel: what a Trainer's user relies on, equal to one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import language_model as lm
import numpy as np
import pytest
import torch
import transformers
from transformers_spawn import run

import smdp.torch
from smdp.transformers import DataParallel, Plugin, Seq2SeqTrainer, Trainer, with_plugins


def train(args: Any = None, **options: Any) -> dict[str, Any]:
    """Train, check that smdp did it, and give what must be equal on one and on two processes."""
    trainer = lm.trainer(args, **options)
    trainer.train()
    if trainer.args.world_size > 1:
        assert lm.is_over_smdp()
        wrapped = trainer.model_wrapped
        wrapped = getattr(wrapped, "_orig_mod", wrapped)
        assert isinstance(wrapped, smdp.torch.DistributedDataParallel)
        assert wrapped._hooks is not None and wrapped._hooks.reducer.steps > 0
    return {"losses": lm.losses(trainer), "weights": lm.weights_hash(trainer.model)}


def plain() -> Any:
    return train()


def accumulated() -> Any:
    return train(lm.arguments(4, gradient_accumulation_steps=2, max_grad_norm=0.5))


def accumulated_unevenly() -> Any:
    """An epoch has 20 batches: its last step accumulates two, not three."""
    return train(lm.arguments(gradient_accumulation_steps=3, max_steps=8))


def checkpointed() -> Any:
    return train(lm.arguments(gradient_checkpointing=True))


def grouped_by_length() -> Any:
    return train(lm.arguments(train_sampling_strategy="group_by_length"))


def stepped_by_plugins() -> Any:
    return train(plugins=[DataParallel(bucket_cap_mb=0.01), Counting()])


def with_an_uneven_end() -> Any:
    """The last batch of an epoch has 6 rows: fewer than the ranks' batches together."""
    return train(lm.arguments(max_steps=45), train_dataset=lm.rows(150))


class Counting(Plugin):
    """Changes nothing."""


SAME = [plain, accumulated, accumulated_unevenly, checkpointed, grouped_by_length, stepped_by_plugins]


@pytest.mark.parametrize("way", SAME, ids=lambda way: way.__name__)
def test_equals_one_process(way: Callable[[], Any]) -> None:
    (alone,) = run(way, 1)
    first, second = run(way, 2)
    assert first["weights"] == second["weights"]
    count = min(20, len(alone["losses"]))
    np.testing.assert_allclose(first["losses"][:count], alone["losses"][:count], atol=1e-5)
    assert first["losses"][0] > first["losses"][-1] + 0.3


def test_uneven_end() -> None:
    first, second = run(with_an_uneven_end, 2)
    assert first["weights"] == second["weights"]
    assert first["losses"][-1] < 3.0


def in_bf16() -> Any:
    return train(lm.arguments(bf16=True), plugins=[DataParallel("bf16")])


def compiled() -> Any:
    return train(lm.arguments(torch_compile=True, torch_compile_backend="aot_eager", max_steps=6))


@pytest.mark.parametrize(
    "way", [in_bf16, pytest.param(compiled, marks=pytest.mark.slow)], ids=lambda way: way.__name__
)
def test_runs_like_one_process(way: Callable[[], Any]) -> None:
    (alone,) = run(way, 1)
    first, second = run(way, 2, hosts=[0, 1])
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], alone["losses"], atol=5e-2)


def evaluated() -> Any:
    """Metrics over all rows, the last batch of which is uneven; the best model; callbacks; one bar."""
    seen: list[str] = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append("step")

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append("evaluate")

    def metrics(prediction: Any) -> dict[str, float]:
        labels = prediction.label_ids[:, 1:]
        return {"rows": len(labels), "right": float((prediction.predictions[:, :-1] == labels).mean())}

    trainer = lm.trainer(
        lm.arguments(
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="steps",
            save_steps=5,
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="right",
            disable_tqdm=False,
        ),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        callbacks=[Watch()],
    )
    trainer.train()
    predicted = trainer.predict(lm.rows(7, 181))
    return {
        "evaluations": [
            {key: entry[key] for key in ("eval_loss", "eval_rows", "eval_right")}
            for entry in trainer.state.log_history
            if "eval_rows" in entry
        ],
        "best": os.path.basename(trainer.state.best_model_checkpoint),
        "weights": lm.weights_hash(trainer.model),
        "predicted": predicted.predictions.tolist(),
        "seen": [seen.count("step"), seen.count("evaluate")],
    }


def test_evaluation() -> None:
    (alone,) = run(evaluated, 1)
    first, second = run(evaluated, 2)
    assert first["weights"] == second["weights"]
    assert first["seen"] == second["seen"] == alone["seen"] == [20, 4]
    assert first["best"] == alone["best"]
    assert np.shape(first["predicted"]) == np.shape(alone["predicted"]) == (7, lm.LENGTH)
    assert np.mean(np.array(first["predicted"]) == np.array(alone["predicted"])) > 0.98
    for one, other in zip(first["evaluations"], alone["evaluations"], strict=True):
        assert one["eval_rows"] == other["eval_rows"] == 21
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=1e-2)


def resumed() -> Any:
    """Ten steps at once, and five, then a new Trainer that goes on: the same bits."""
    options = {"max_steps": 10, "save_strategy": "steps", "save_steps": 5}
    whole = lm.trainer(lm.arguments(**options), plugins=[DataParallel(), Remembering()])
    whole.train()
    again = lm.trainer(lm.arguments(**options), plugins=[DataParallel(), Remembering()])
    again.train(resume_from_checkpoint=os.path.join(lm.folder(), "checkpoint-5"))
    assert lm.losses(again)[-5:] == lm.losses(whole)[-5:]
    return [lm.weights_hash(whole.model), lm.weights_hash(again.model), again.plugins[1].steps]


class Remembering(Plugin):
    """Has something of its own in every checkpoint."""

    steps = 0

    def run_step(self, trainer: Any, run: Any, model: Any, inputs: Any, items: Any) -> torch.Tensor:
        self.steps += 1
        return super().run_step(trainer, run, model, inputs, items)

    def save_state(self, trainer: Any, save: Callable[[], None], folder: str) -> None:
        save()
        if trainer.is_world_process_zero():
            with open(os.path.join(folder, "remembered"), "w") as file:
                file.write(str(self.steps))

    def load_state(self, trainer: Any, load: Callable[[], None], folder: str) -> None:
        load()
        with open(os.path.join(folder, "remembered")) as file:
            self.steps = int(file.read())


def test_resume() -> None:
    for whole, again, steps in run(resumed, 2):
        assert whole == again
        assert steps == 10


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model = get_peft_model(lm.model(), LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0))
    return train(model=model)


def test_lora() -> None:
    pytest.importorskip("peft")
    (alone,) = run(adapted, 1)
    first, second = run(adapted, 2)
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], alone["losses"], atol=1e-5)


def of_other_classes() -> Any:
    """A class of one's own, Seq2SeqTrainer, and a default group over gloo beside ours."""

    class Own(transformers.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return (loss[0] * 2, loss[1]) if isinstance(loss, tuple) else loss * 2

    doubled = lm.trainer(lm.arguments(max_steps=2), with_plugins(Own))
    assert isinstance(doubled, Own) and type(doubled).__name__ == "Own"
    assert with_plugins(Trainer) is Trainer
    doubled.train()

    options = {**lm.arguments(max_steps=2).to_dict(), "ddp_backend": "smdp"}
    known = transformers.Seq2SeqTrainingArguments.__dataclass_fields__
    args = transformers.Seq2SeqTrainingArguments(
        **{name: value for name, value in options.items() if name in known and known[name].init}
    )
    seq2seq = lm.trainer(args, Seq2SeqTrainer)
    seq2seq.train()
    return [lm.losses(doubled), lm.losses(seq2seq)]


def test_other_trainers() -> None:
    for doubled, plain_losses in run(of_other_classes, 2):
        assert doubled[0] == pytest.approx(2 * plain_losses[0], abs=1e-4)


def beside_gloo() -> Any:
    args = transformers.TrainingArguments(
        lm.folder(), use_cpu=True, max_steps=3, per_device_train_batch_size=4, seed=3, report_to=[]
    )
    trainer = lm.trainer(args, plugins=[DataParallel(algorithm="direct", trace=lm.folder())])
    trainer.train()
    assert torch.distributed.get_backend() == "gloo" and not lm.is_over_smdp()
    assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)
    assert "SMDP_ALGORITHM" not in os.environ
    return lm.weights_hash(trainer.model)


def test_beside_gloo() -> None:
    first, second = run(beside_gloo, 2)
    assert first == second


NUMBERS = ("communication_ms", "exposed_ms", "gradient_mb", "input_ms")


def reported() -> Any:
    os.environ["TENSORBOARD_LOGGING_DIR"] = folder = os.path.join(os.environ["SMDP_TEST_FOLDER"], "events")
    args = lm.arguments(max_steps=6, logging_steps=3, report_to=["tensorboard"])
    trainer = lm.trainer(args)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(folder)
        events.Reload()
        for name in NUMBERS:
            shown = [event.value for event in events.Scalars(f"train/smdp_{name}")]
            assert shown == pytest.approx([entry[f"smdp_{name}"] for entry in entries])
    return [[entry[f"smdp_{name}"] for name in NUMBERS] for entry in entries]


def test_numbers_in_the_log() -> None:
    pytest.importorskip("tensorboard")
    megabytes = 4e-6 * sum(parameter.numel() for parameter in lm.model().parameters())
    for entries in run(reported, 2):
        assert len(entries) == 2
        for communication, exposed, size, wait in entries:
            assert size == pytest.approx(megabytes)
            assert exposed > 0 and 0 < communication < 1e4 and 0 <= wait < 1e3


def parsed() -> Any:
    """--ddp_backend smdp on the command line."""
    parser = transformers.HfArgumentParser(smdp.transformers.TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(
        ["--output_dir", lm.folder(), "--ddp_backend", "smdp", "--max_steps", "2", "--report_to", "none"]
    )
    lm.trainer(args).train()
    return [args.ddp_backend, lm.is_over_smdp(), args.world_size, args.process_index]


def test_command_line() -> None:
    assert run(parsed, 2) == [["smdp", True, 2, 0], ["smdp", True, 2, 1]]


def refused() -> Any:
    with pytest.raises(ValueError, match="DataParallel and DataParallel contradict: there are two"):
        lm.trainer(plugins=[DataParallel(), DataParallel("bf16")])
    with pytest.raises(TypeError, match=r"plugins has 'ddp'; every entry must be a smdp\."):
        lm.trainer(plugins=["ddp"])
    with pytest.raises(TypeError, match="plugins is a DataParallel; it must be a list"):
        lm.trainer(plugins=DataParallel())
    with pytest.raises(ValueError, match="ddp_backend is 'nonsense'; allowed: smdp, nccl"):
        lm.arguments(ddp_backend="nonsense")
    with pytest.raises(TypeError, match="plugins has the class DataParallel"):
        lm.trainer(plugins=[DataParallel])
    with pytest.raises(TypeError, match=r"Trainer takes no plugins. Use smdp.transformers.Trainer, or"):
        lm.trainer(cls=transformers.Trainer)
    with pytest.raises(ValueError, match="compression is 'zip'; allowed: none, fp16"):
        DataParallel("zip")
    with pytest.raises(ValueError, match="bucket_cap_mb is 0; it must be above 0"):
        DataParallel(bucket_cap_mb=0)
    with pytest.raises(smdp.ConfigError, match="SMDP_ALGORITHM"):
        DataParallel(algorithm="fast")
    with pytest.raises(TypeError, match=r"takes a subclass of transformers\.Trainer, got <class 'int'>"):
        with_plugins(int)
    return True


def test_refusals() -> None:
    assert run(refused, 2) == [True, True]
