"""Lightning by SMDDP's backend name, which the original refused."""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        self.last = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        return self.last

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="smddp"),
    max_epochs=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Model()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 16)
trainer.fit(model, loader)
assert torch.distributed.get_backend() == "smddp"
weight = model.layer.weight.detach()
weights = [torch.empty_like(weight) for _ in range(trainer.world_size)]
torch.distributed.all_gather(weights, weight)
assert all(torch.equal(each, weight) for each in weights), "the ranks' weights differ"
if trainer.is_global_zero:
    print(f"accuracy {1 - model.last.item():.3f} on {trainer.world_size} ranks", flush=True)
