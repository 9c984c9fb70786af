"""MNIST's script of SageMaker Model Parallel, configured by SM_HP_MP_PARAMETERS, on smaller images."""

import argparse

import numpy as np
import smdistributed.modelparallel.torch as smp
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--mp_parameters", type=str, default="")
parser.add_argument("--save", type=str, default="")
args = parser.parse_args()

smp.init()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GroupedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc1 = nn.Linear(1024, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), 1)


# smdistributed: the forward and backward of one batch.
@smp.step
def train_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="mean")
    model.backward(loss)
    return output, loss


@smp.step
def test_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="sum").item()
    correct = output.argmax(1).eq(target).sum().item()
    return loss, correct


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        _, loss_mb = train_step(model, data, target)
        loss = loss_mb.reduce_mean()
        optimizer.step()
    return loss


def test(model, device, loader):
    model.eval()
    correct = count = 0
    with torch.no_grad():
        for data, target in loader:
            _, correct_mb = test_step(model, data.to(device), target.to(device))
            correct += sum(correct_mb)
            count += len(data)
    return correct / count


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
if smp.dp_size() > 1:
    data = torch.utils.data.Subset(data, range(smp.dp_rank(), 1500, smp.dp_size()))
loader = torch.utils.data.DataLoader(
    data, args.batch_size, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(1)
)
held_out = torch.utils.data.TensorDataset(images[1500:1780], labels[1500:1780])
test_loader = torch.utils.data.DataLoader(held_out, 40, drop_last=True)

model = GroupedNet().to(device)
# smdistributed: divide only one layer.
smp.set_tensor_parallelism(model.fc1, smp.tp_size() > 1)
model = smp.DistributedModel(model)
if smp.tp_size() > 1:
    assert model.module.fc1.weight.shape == (64, 1024 // smp.tp_size())
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=5e-3))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
for epoch in range(args.epochs):  # noqa: B007
    loss = train(model, device, loader, optimizer)
    scheduler.step()
    accuracy = test(model, device, test_loader)

local = len(list(model.local_parameters()))
assert local < 8 if smp.pp_size() > 1 else local == 8
if args.save:
    if smp.rdp_rank() == 0:
        smp.save({"model": model.local_state_dict(), "epoch": epoch}, args.save, partial=True)
    smp.barrier()
    again = smp.load(args.save, partial=True)
    assert again["epoch"] == epoch and again["model"]["_smp_is_partial"]
parts = smp.allgather(float(loss), smp.DP_GROUP)
assert np.isfinite(parts).all() and epoch == args.epochs - 1
smp.barrier()
if smp.rank() == 0:
    print(f"accuracy {accuracy:.3f} on {smp.size()} ranks", flush=True)
