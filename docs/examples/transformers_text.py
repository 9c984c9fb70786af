"""Train a byte-level language model on the text of Python's documentation.

    smdp run -n 2 docs/examples/transformers_text.py --output text-model
    python docs/examples/transformers_text.py --output text-model      # one process, no plugin

Started again with the same output it goes on from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import math
import os
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.trainer_utils import get_last_checkpoint

from smdp.transformers import DataParallel, Trainer, TrainingArguments

LENGTH = 128


def rows_of_text() -> torch.Tensor:
    """Bytes of 650 pages of real English, in rows."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="text-model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    options = parser.parse_args()

    is_parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    arguments = TrainingArguments(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=16 // int(os.environ.get("WORLD_SIZE", "1")),
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=10,
        save_steps=options.save_steps,
        report_to=[],
        seed=1,
    )
    torch.manual_seed(1)
    shape = {"n_embd": 256, "n_layer": 6, "n_head": 8, "n_positions": LENGTH, "vocab_size": 256}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    rows = [{"input_ids": row, "labels": row} for row in rows_of_text()]
    held_out = rows[::20]
    trainer = Trainer(
        model,
        arguments,
        train_dataset=[row for i, row in enumerate(rows) if i % 20],
        eval_dataset=held_out,
        plugins=[DataParallel(compression="bf16")] if is_parallel else [],
    )
    newest = get_last_checkpoint(options.output) if os.path.isdir(options.output) else None
    trainer.train(resume_from_checkpoint=newest)
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"held-out text: loss {loss:.3f} per byte, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
