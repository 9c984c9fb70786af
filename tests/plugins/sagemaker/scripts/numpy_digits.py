"""Softmax regression on scikit-learn's digits, without a framework; goes on from its checkpoint."""

from __future__ import annotations

import argparse
import json
import os

import numpy as np
from sklearn.datasets import load_digits

import smdp
from smdp.sagemaker import Job

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--learning-rate", type=float, default=0.5)
parser.add_argument("--save-every", type=int, default=1, help="epochs; it is saved before a restart, too")
parser.add_argument("--fail-at", type=int, default=-1)
options = parser.parse_args()

world = smdp.init()
job = Job.read()
x, y = load_digits(return_X_y=True)
x = np.hstack([x / 16, np.ones((len(x), 1))])
train_x, train_y, test_x, test_y = x[:1500], y[:1500], x[1500:], y[1500:]
mine = slice(world.rank, None, world.size)
weights, first = np.zeros((x.shape[1], 10)), 0
checkpoint = os.path.join(job.checkpoint_dir, "weights.npz")
if os.path.exists(checkpoint):
    with np.load(checkpoint) as saved:
        weights, first = saved["weights"], int(saved["epoch"]) + 1
    print(f"going on with epoch {first}")
epoch = first - 1


def save() -> None:
    if world.local_rank == 0 and os.path.isdir(job.checkpoint_dir):
        np.savez(checkpoint, weights=weights, epoch=epoch)


for epoch in range(first, options.epochs):
    if epoch == options.fail_at and world.rank == world.size - 1:
        raise RuntimeError(f"nothing is left of epoch {epoch}")
    logits = train_x[mine] @ weights
    likely = np.exp(logits - logits.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    wanted = np.eye(10)[train_y[mine]]
    loss = np.array([-np.log(likely[wanted == 1]).mean()])
    gradient = train_x[mine].T @ (likely - wanted) / len(wanted)
    world.all_reduce(gradient, op=smdp.AVG)
    world.all_reduce(loss, op=smdp.AVG)
    weights -= 4 * options.learning_rate * gradient
    if (epoch + 1) % options.save_every == 0:
        save()
    smdp.print_step(epoch, loss=loss[0])
    smdp.exit_if_preempted(save)
sums = np.full(1, weights.sum())
world.all_reduce(sums, op=smdp.AVG)
assert sums[0] == weights.sum(), "ranks have different weights"
accuracy = float(((test_x @ weights).argmax(1) == test_y).mean())
print(f"rank {world.rank} of {world.size}: accuracy {accuracy:.3f} on {job.current_host}")
if world.rank == 0:
    np.save(os.path.join(os.environ["SM_MODEL_DIR"], "weights.npy"), weights)
    with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "accuracy.json"), "w") as file:
        json.dump(accuracy, file)
