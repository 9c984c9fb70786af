"""Train a language model with transformers' Trainer.

    smdp run -n 2 docs/examples/transformers_text.py --output text-model
    smdp run -n 2 docs/examples/transformers_text.py --output text-model --stages 2
    python docs/examples/transformers_text.py --output text-model      # one process, no plugin

Started again with the same output it goes on from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from text_model import make_model, make_rows

from smdp.transformers import DataParallel, ModelParallel, Plugin, Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="text-model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--stages", type=int, default=1, help="ranks that hold one model together")
    options = parser.parse_args()

    arguments = TrainingArguments(
        options.output,
        max_steps=options.steps,
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=10,
        save_steps=options.save_steps,
        report_to=[],
        seed=1,
    )
    size = arguments.world_size
    arguments.per_device_train_batch_size = 16 * options.stages // size
    plugins: list[Plugin] = []
    if options.stages > 1:
        plugins = [ModelParallel(stages=options.stages, microbatches=8), DataParallel()]
    elif size > 1:
        plugins = [DataParallel(compression="bf16")]
    train, held_out = make_rows()
    trainer = Trainer(
        make_model(),
        arguments,
        train_dataset=train,
        eval_dataset=held_out,
        plugins=plugins,
    )
    has_begun = any(Path(options.output).glob("checkpoint-*/trainer_state.json"))
    trainer.train(resume_from_checkpoint=has_begun)
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"held-out text: loss {loss:.3f} per byte, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
