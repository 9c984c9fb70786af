"""A script as users of horovod.torch write it."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

hvd.init()
torch.manual_seed(42 + hvd.rank())
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(data, 64 // hvd.size(), sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), 0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    op=hvd.Average,
)
for epoch in range(8):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()

right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
accuracy = hvd.allreduce(right, name="accuracy").item()
weights = hvd.allgather(model[0].weight.detach().reshape(1, -1))
assert (weights == weights[0]).all()
if hvd.rank() == 0:
    print(f"accuracy {accuracy:.3f} on {hvd.size()} ranks", flush=True)
