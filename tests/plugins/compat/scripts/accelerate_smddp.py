"""A loop of Accelerate's, in a job that it configured for SageMaker or in any other."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits

accelerator = Accelerator()
assert torch.distributed.get_backend() == "smddp"

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
loader = torch.utils.data.DataLoader(data, 64 // accelerator.num_processes, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(8):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()

weight = accelerator.unwrap_model(model)[0].weight.detach()
weights = accelerator.gather(weight[None])
assert len(weights) == accelerator.num_processes and (weights == weight).all(), "the ranks' weights differ"
accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
accelerator.print(f"accuracy {accuracy:.3f} on {accelerator.num_processes} ranks", flush=True)
