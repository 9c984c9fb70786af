"""Trainers with DataParallel: what a Trainer's user relies on, equal to one process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language_model as lm
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from loss_scales import told_factors
from transformers_spawn import run

import smdp.torch
from smdp.transformers import (
    DataParallel,
    ModelParallel,
    Plugin,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    with_plugins,
)


def train(args: Any = None, **options: Any) -> dict[str, Any]:
    """Train, check that smdp did it once per step of the optimizer, and give what must be equal anywhere."""
    trainer = lm.trainer(args, **options)
    trainer.train()
    if trainer.args.world_size > 1:
        assert lm.is_over_smdp()
        wrapped = trainer.model_wrapped
        assert hasattr(wrapped, "_orig_mod") == trainer.args.torch_compile
        wrapped = getattr(wrapped, "_orig_mod", wrapped)
        assert isinstance(wrapped, smdp.torch.DistributedDataParallel)
        assert wrapped._hooks is not None and wrapped._hooks.reducer.steps == trainer.state.global_step > 0
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
    """Rows of 6 to 24 bytes: those of a batch are about as long."""
    spread: list[int] = []

    def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        lengths = [len(row["input_ids"]) for row in rows]
        spread.append(max(lengths) - min(lengths))
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([row["input_ids"] for row in rows], batch_first=True)
        labels = pad([row["labels"] for row in rows], batch_first=True, padding_value=-100)
        return {"input_ids": ids, "labels": labels, "attention_mask": (labels != -100).long()}

    lengths = [6 + 5 * i % 19 for i in range(160)]
    rows = zip(lm.rows(160), lengths, strict=True)
    uneven = [{key: part[:length] for key, part in row.items()} for row, length in rows]
    args = lm.arguments(train_sampling_strategy="group_by_length")
    result = train(args, train_dataset=uneven, data_collator=padded)
    assert statistics.mean(spread) < 6, spread  # in any order it is 15 and more
    return result


def stepped_by_plugins() -> Any:
    counting = Counting()
    result = train(plugins=[DataParallel(bucket_cap_mb=0.01), counting])
    assert (counting.models, counting.steps) == (1, 20)
    return result


def with_an_uneven_end() -> Any:
    """The last batch of an epoch has 6 rows: fewer than the ranks' batches together."""
    return train(lm.arguments(max_steps=45), train_dataset=lm.rows(150))


def with_an_uneven_end_over_gloo() -> Any:
    """The same by transformers' own Trainer and torch's own class."""
    args = lm.arguments(ddp_backend="gloo", max_steps=45)
    trainer = transformers.Trainer(lm.model(), args, train_dataset=lm.rows(150))
    trainer.train()
    assert type(trainer.model_wrapped) is torch.nn.parallel.DistributedDataParallel
    return {"losses": lm.losses(trainer), "weights": lm.weights_hash(trainer.model)}


class Counting(Plugin):
    """Changes nothing."""

    def __init__(self) -> None:
        self.models = self.steps = 0

    def wrap_model(self, trainer: Any, prepare: Any, model: Any, **options: Any) -> Any:
        self.models += 1
        return prepare(model, **options)

    def run_step(self, trainer: Any, run: Any, model: Any, inputs: Any, items: Any) -> Any:
        self.steps += 1
        return run(model, inputs, items)


SAME = [plain, accumulated_unevenly, grouped_by_length, stepped_by_plugins]
# Of even batches the uneven ones tell; recomputing is torch's, and tests/plugins/torch/data_parallel has it.
SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in (accumulated, checkpointed)]


@pytest.mark.parametrize("way", [*SAME, *SLOW], ids=lambda way: way.__name__)
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
    assert first == run(with_an_uneven_end_over_gloo, 2)[0]


def scaled() -> Any:
    """Mixed precision in float16 needs a GPU; its scaler does not."""
    told = told_factors()
    trainer = lm.trainer(lm.arguments(max_grad_norm=0, max_steps=20), plugins=[DataParallel("int8")])
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    trainer.train()
    return told


def test_follows_a_loss_scaler() -> None:
    assert run(scaled, 2) == [[2.0] * 4] * 2


def in_bf16() -> Any:
    dtypes = set()
    model = lm.model()
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda *given: dtypes.add(given[2].dtype))
    result = train(lm.arguments(bf16=True), model=model, plugins=[DataParallel("bf16")])
    assert dtypes == {torch.bfloat16}
    return result


def compiled() -> Any:
    args = lm.arguments(torch_compile=True, torch_compile_backend="aot_eager", max_steps=3)
    return train(args, model=lm.model(n_layer=1))


# Accelerate has fp16 on accelerators only.
@pytest.mark.parametrize(("way", "within"), [(in_bf16, 5e-3), (compiled, 1e-5)], ids=["in_bf16", "compiled"])
def test_runs_like_one_process(way: Callable[[], Any], within: float) -> None:
    (alone,) = run(way, 1)
    first, second = run(way, 2, hosts=[0, 1])
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], alone["losses"], atol=within)


def evaluated() -> Any:
    """Metrics over all rows, the last batch of which is uneven; the best model; callbacks; one bar."""
    seen: list[str] = []
    bars = set()

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append("step")
            for callback in trainer.callback_handler.callbacks:
                bars.add(getattr(callback, "training_bar", None) is not None)

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
            greater_is_better=False,  # so that it is not the last
            disable_tqdm=False,
        ),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        callbacks=[Watch()],
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    saved = safetensors.torch.load_file(os.path.join(best, "model.safetensors"))
    parameters = dict(trainer.model.named_parameters())
    assert saved.keys() <= parameters.keys()
    assert all(torch.equal(parameters[name], tensor) for name, tensor in saved.items())
    predicted = trainer.predict(lm.rows(7, 181))
    return {
        "evaluations": [
            {key: entry[key] for key in ("eval_rows", "eval_right")}
            for entry in trainer.state.log_history
            if "eval_rows" in entry
        ],
        # Of 24 rows: where batches are uneven, the Trainer's mean weighs some of them twice, over gloo, too.
        "loss": trainer.evaluate(lm.rows(24, 160))["eval_loss"],
        "best": os.path.basename(best),
        "has_bar": True in bars,
        "weights": lm.weights_hash(trainer.model),
        "predicted": predicted.predictions.tolist(),
        "seen": [seen.count("step"), seen.count("evaluate")],
    }


def test_evaluation() -> None:
    (alone,) = run(evaluated, 1)
    first, second = run(evaluated, 2)
    assert first["weights"] == second["weights"]
    assert first["seen"] == second["seen"] == alone["seen"] == [20, 5]  # four while it trains
    assert first["best"] == second["best"] == alone["best"] != "checkpoint-20"
    assert (first["has_bar"], second["has_bar"]) == (True, False)
    assert np.shape(first["predicted"]) == np.shape(alone["predicted"]) == (7, lm.LENGTH)
    assert first["predicted"] == second["predicted"] == alone["predicted"]
    assert first["evaluations"] == second["evaluations"] == alone["evaluations"]
    assert [entry["eval_rows"] for entry in alone["evaluations"]] == [21] * 4
    assert first["loss"] == second["loss"] == pytest.approx(alone["loss"], abs=1e-5)


def resumed() -> Any:
    """Twelve steps at once, and a new Trainer that goes on within the second epoch: the same bits."""

    def made() -> Any:
        return lm.trainer(
            lm.arguments(4, gradient_accumulation_steps=2, max_steps=12, save_strategy="steps", save_steps=4),
            model=lm.model(resid_pdrop=0.1, embd_pdrop=0.1),
            train_dataset=lm.rows(48),  # six steps
            plugins=[DataParallel(), Remembering()],
        )

    whole, again = made(), made()
    whole.train()
    again.train(resume_from_checkpoint=os.path.join(lm.folder(), "checkpoint-8"))
    assert lm.losses(again)[-4:] == lm.losses(whole)[-4:]
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
        assert steps == 24


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


def translated() -> Any:
    """An encoder and a decoder; predictions are generated, on each rank its part."""
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 256}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**shape, decoder_start_token_id=0, dropout_rate=0.0)
    )
    args = Seq2SeqTrainingArguments(
        lm.folder(),
        max_steps=20,
        per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", "1")),
        per_device_eval_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        predict_with_generate=True,
        generation_max_length=6,
        save_strategy="no",
        report_to=[],
        seed=3,
    )
    trainer = lm.trainer(
        args,
        Seq2SeqTrainer,
        model=model,
        compute_metrics=lambda seen: {"rows": len(seen.predictions)},
    )
    trainer.train()
    return {
        "losses": lm.losses(trainer),
        "weights": lm.weights_hash(trainer.model),
        "rows": trainer.evaluate()["eval_rows"],
        "predicted": trainer.predict(lm.rows(7, 181)).predictions[:7].tolist(),
    }


def test_seq2seq() -> None:
    (alone,) = run(translated, 1)
    first, second = run(translated, 2)
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], alone["losses"], atol=1e-5)
    assert first["rows"] == second["rows"] >= alone["rows"] == 21  # the last rows come twice, as over gloo
    assert first["predicted"] == second["predicted"] == alone["predicted"]


def configured() -> Any:
    """What the plugin is given arrives at the reducer."""
    trainer = lm.trainer(plugins=[DataParallel("topk", bucket_cap_mb=0.05, topk_ratio=0.5)])
    trainer.train()
    words = trainer.model_wrapped.explain()
    assert "on 2 hosts; compression between hosts: topk." in words and "limit 0.05 MB" in words, words
    assert words.count("\nbuffer ") > 2
    return lm.weights_hash(trainer.model)


def test_options() -> None:
    first, second = run(configured, 2, hosts=[0, 1])
    assert first == second


def beside_gloo() -> Any:
    args = transformers.TrainingArguments(
        lm.folder(), use_cpu=True, max_steps=3, per_device_train_batch_size=4, seed=3, report_to=[]
    )
    plugin = DataParallel(algorithm="ring", trace=os.environ["SMDP_TEST_TRACES"])
    trainer = lm.trainer(args, plugins=[plugin])
    trainer.train()
    used = {row["algorithm"] for row in smdp.stats()["operations"] if row["operation"] == "all_reduce"}
    assert used == {"ring"}, used
    assert torch.distributed.get_backend() == "gloo" and not lm.is_over_smdp()
    assert isinstance(trainer.model_wrapped, smdp.torch.DistributedDataParallel)
    assert "SMDP_ALGORITHM" not in os.environ
    return lm.weights_hash(trainer.model)


def test_beside_gloo(tmp_path: Path) -> None:
    first, second = run(beside_gloo, 2, hosts=[0, 1], env={"SMDP_TEST_TRACES": str(tmp_path)})
    assert first == second
    traces = [next(tmp_path.glob(f"rank{rank}-*.json")).read_text() for rank in range(2)]
    assert all("all_reduce" in trace for trace in traces)


class HandsOn(transformers.Trainer):
    """Of one's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


def refused() -> Any:
    loader = torch.utils.data.dataloader._BaseDataLoaderIter
    plain_next = loader.__next__
    with pytest.raises(ValueError, match="DataParallel and DataParallel cannot be used together: there"):
        lm.trainer(plugins=[DataParallel(), DataParallel("bf16")])
    with pytest.raises(ValueError, match="and the argument fsdp cannot be used together, because fsdp"):
        lm.trainer(lm.arguments(fsdp="full_shard"))
    # Made before the variable is set: where deepspeed is not installed, they say so.
    args = lm.arguments()
    for name in ("fsdp", "deepspeed", "megatron_lm"):
        told = f"DataParallel and ACCELERATE_USE_{name.upper()}=true cannot be used together, because {name}"
        with lm.launched_with(name), pytest.raises(ValueError, match=told):
            lm.trainer(args)
    with pytest.raises(TypeError, match=r"plugins contains 'ddp'; every entry must be a smdp\."):
        lm.trainer(plugins=["ddp"])
    with pytest.raises(TypeError, match="plugins is a DataParallel; it must be a list"):
        lm.trainer(plugins=DataParallel())
    with pytest.raises(ValueError, match="ddp_backend is 'nonsense'; allowed: smdp, nccl"):
        lm.arguments(ddp_backend="nonsense")
    with pytest.raises(TypeError, match="plugins contains the class DataParallel"):
        lm.trainer(plugins=[DataParallel])
    with pytest.raises(
        TypeError, match=r"Trainer does not support plugins\. Use smdp.transformers.Trainer, or"
    ):
        lm.trainer(cls=transformers.Trainer)
    with pytest.raises(TypeError, match=r"Seq2SeqTrainer does not support plugins\. Use smdp"):
        transformers.Seq2SeqTrainer(lm.model(), lm.arguments(), plugins=[DataParallel()])
    with pytest.raises(TypeError, match="HandsOn does not support plugins"):
        HandsOn(model=lm.model(), args=lm.arguments(), plugins=[DataParallel()])
    lm.trainer()
    assert loader.__next__ is not plain_next  # timed
    smdp.transformers.uninstall()
    assert loader.__next__ is plain_next
    for plain in (transformers.Trainer, transformers.Seq2SeqTrainer):
        with pytest.raises(TypeError, match="unexpected keyword argument 'plugins'"):
            lm.trainer(cls=plain)
    smdp.transformers.install()
    with pytest.raises(TypeError, match="Seq2SeqTrainer does not support plugins"):
        lm.trainer(cls=transformers.Seq2SeqTrainer)
    assert HandsOn(model=lm.model(), args=lm.arguments()).args.world_size == 2
    assert lm.trainer(plugins=None).plugins == []
    with pytest.raises(ValueError, match="compression is 'zip'; allowed: none, fp16"):
        DataParallel("zip")
    with pytest.raises(ValueError, match="bucket_cap_mb is 0; it must be a number of MiB"):
        DataParallel(bucket_cap_mb=0)
    with pytest.raises(ValueError, match="topk_momentum is 1; it must be a number of at least 0"):
        DataParallel("topk", topk_momentum=1)
    with pytest.raises(smdp.ConfigError, match=r"\[smdp\] DataParallel: SMDP_ALGORITHM='fast' is not valid"):
        DataParallel(algorithm="fast")
    with pytest.raises(ValueError, match="algorithm is 3; it must be a string"):
        DataParallel(algorithm=3)
    with pytest.raises(ValueError, match="preemption is 'no'; it must be True or False"):
        DataParallel(preemption="no")
    assert DataParallel(trace=Path("traces")).changed == ["trace"]
    with pytest.raises(TypeError, match="plugins is a str; it must be a list"):
        lm.trainer(plugins="DataParallel")
    with pytest.raises(TypeError, match=r"needs a subclass of transformers\.Trainer, but got <class 'int'>"):
        with_plugins(int)
    return True


def test_refusals() -> None:
    assert run(refused, 2) == [True, True]


def differing() -> Any:
    """Told at once, on all ranks, instead of one of them waiting for the other to make a group."""
    is_last = os.environ["RANK"] == "1"
    args = lm.arguments(max_steps=1, ddp_backend=os.environ["BACKEND"])
    for name, value in {
        "algorithm": "ring",
        "trace": "traces",
        "preemption": False,
        "topk_ratio": 0.5,
    }.items():
        shown = "..." if name == "trace" else value
        told = rf"\[DataParallel\({name}={shown!r}\)\] on rank 1 of 2, but \[DataParallel\(\)\] on rank 0"
        with pytest.raises(smdp.MismatchError, match=told):
            lm.trainer(args, plugins=[DataParallel(**({name: value} if is_last else {}))])
    with pytest.raises(smdp.MismatchError, match=r"\[\] on rank 1 of 2, but \[Counting\(\)\] on rank 0"):
        lm.trainer(args, plugins=[] if is_last else [Counting()])
    with pytest.raises(
        smdp.MismatchError, match=r"\[ModelParallel\(stages=1\)\] on rank 1 .* \[ModelParallel\(\)\]"
    ):
        lm.trainer(args, plugins=[ModelParallel(stages=1 if is_last else 2)])
    folder = os.path.join(lm.folder(), os.environ["RANK"])  # which may differ
    lm.trainer(args, plugins=[DataParallel(trace=folder)]).train()
    return True


@pytest.mark.parametrize("backend", ["smdp", "gloo"])
def test_plugins_that_differ(backend: str) -> None:
    assert run(differing, 2, env={"BACKEND": backend}, timeout=60) == [True, True]
