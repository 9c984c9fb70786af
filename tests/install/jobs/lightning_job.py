"""Two ranks train a linear model for two steps with Lightning's Trainer on smdp's strategy."""

from __future__ import annotations

import lightning
import torch

from smdp.lightning import SmdpStrategy


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
model = Line()
trainer = lightning.Trainer(
    strategy=SmdpStrategy(), accelerator="cpu", devices=2, max_steps=2,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4))
assert trainer.global_step == 2 and trainer.world_size == 2
print("the result is right", flush=True)
