# needs: torch lightning
# ranks: 2
import lightning
import torch

import smdp.torch


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
run(0)
ours = trainer
run(1)
trainer.fit_loop.max_epochs = 1
trainer.fit(Line(), data)
assert isinstance(trainer.optimizers[0], smdp.torch.ShardedOptimizer)
for block in (2, 3):
    run(block)
    assert trainer.world_size == ours.world_size == 2
assert trainer.global_rank == ours.global_rank and trainer.world_size == 2
trainer = ours
trainer.fit_loop.max_epochs = 1
trainer.fit(Line(), data)
assert trainer.global_step == 2
