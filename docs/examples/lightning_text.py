"""Train a language model with Lightning.

smdp run -n 2 docs/examples/lightning_text.py
python docs/examples/lightning_text.py                             # Lightning starts both ranks itself
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import lightning
import torch
from text_model import make_model, make_rows

from smdp.lightning import SmdpStrategy


class LanguageModel(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, rows: Any, _: int) -> torch.Tensor:
        loss = self.model(**rows).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, rows: Any, _: int) -> None:
        self.log("held_out", self.model(**rows).loss, sync_dist=True, batch_size=len(rows["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args()

    train, held_out = make_rows()
    batch = 16 // options.devices
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy=SmdpStrategy(compression="bf16") if options.devices > 1 else "auto",
        max_steps=options.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
    )
    module = LanguageModel()
    trainer.fit(module, torch.utils.data.DataLoader(train, batch, shuffle=True))
    trainer.limit_val_batches = 1.0
    metrics = trainer.validate(module, torch.utils.data.DataLoader(held_out, batch), verbose=False)
    if trainer.is_global_zero:
        loss = metrics[0]["held_out"]
        print(f"held-out text: loss {loss:.3f} per byte, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
