"""TRL's trainers, which are subclasses of transformers.Trainer, with plugins."""

from __future__ import annotations

import os
from pydoc_data.topics import topics
from typing import Any

import language_model as lm
import pytest
import torch
from transformers_spawn import run

from smdp.transformers import DataParallel, with_plugins

trl = pytest.importorskip("trl")

pytestmark = pytest.mark.timeout(240)


def tokenizer() -> Any:
    """Of single bytes; nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_of_text = Tokenizer(models.BPE(alphabet, []))
    bytes_of_text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of_text.decoder = decoders.ByteLevel()
    symbols = dict.fromkeys(("eos_token", "bos_token", "pad_token"), sorted(alphabet)[0])
    return PreTrainedTokenizerFast(tokenizer_object=bytes_of_text, **symbols)


def tuned() -> Any:
    """TRL's fine-tuning on text, with its own collator, tokens and metrics."""
    from datasets import Dataset

    text = "".join(topics[name] for name in sorted(topics)[:20])
    rows = Dataset.from_dict({"text": [text[lm.LENGTH * i : lm.LENGTH * (i + 1) - 1] for i in range(160)]})
    options = {
        "max_steps": 20,
        "max_length": lm.LENGTH,
        "per_device_train_batch_size": 8 // int(os.environ.get("WORLD_SIZE", "1")),
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
        "use_cpu": True,
        "ddp_backend": "smdp",
        "bf16": False,
        "gradient_checkpointing": False,
    }
    trainer = with_plugins(trl.SFTTrainer)(
        lm.model(),
        args=trl.SFTConfig(lm.folder(), **options),
        train_dataset=rows,
        processing_class=tokenizer(),
        plugins=[DataParallel()],
    )
    assert isinstance(trainer, trl.SFTTrainer)
    trainer.train()
    history = trainer.state.log_history
    return {
        "losses": lm.losses(trainer),
        "weights": lm.weights_hash(trainer.accelerator.unwrap_model(trainer.model)),
        "smdp": torch.distributed.is_initialized() and lm.is_over_smdp(),
        "sent": [entry["smdp_gradient_mb"] for entry in history if "smdp_gradient_mb" in entry],
    }


def test_supervised_fine_tuning_of_trl() -> None:
    (alone,) = run(tuned, 1)
    first, second = run(tuned, 2)
    assert first["smdp"] and first["weights"] == second["weights"]
    assert len(first["sent"]) >= 20 and min(first["sent"]) > 0
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert alone["losses"][-1] < alone["losses"][0] - 0.3
