"""A small vision transformer learns scikit-learn's digits with transformers' Trainer, as users write it."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

from smdp.transformers import DataParallel, Trainer, TrainingArguments


def main() -> None:
    digits = load_digits()
    pixels = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    rows = [
        {"pixel_values": image, "labels": int(label)}
        for image, label in zip(pixels, digits.target, strict=True)
    ]
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 64, "intermediate_size": 128}
    config = ViTConfig(**shape, num_hidden_layers=2, num_attention_heads=4, num_labels=10)
    arguments = TrainingArguments(
        sys.argv[1],
        num_train_epochs=15,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        ViTForImageClassification(config),
        arguments,
        train_dataset=rows[:1437],
        eval_dataset=rows[1437:],
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
        },
        plugins=[DataParallel()],
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"accuracy {accuracy:.3f} on {trainer.args.world_size} ranks", flush=True)
    assert accuracy > 0.8, accuracy


if __name__ == "__main__":
    main()
