"""Layers that are divided over two hosts train like one process, and one warning says what this costs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from network import Cluster, why_not
from test_training import check, torchrun

REASON = why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

TRAIN = """
import copy
import torch
import torch.distributed as dist
from torch import nn
import smdp.torch

torch.set_num_threads(1)
dist.init_process_group("smdp")
torch.manual_seed(0)
alone = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).double()
model = copy.deepcopy(alone)
smdp.torch.tensor_parallel(model, dist.get_world_size(), {"0": "colwise", "2": "rowwise"})
values = torch.randn(4, 8).double()
losses = []
for each in (alone, model):
    optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = each(values).square().mean()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
assert abs(losses[0] - losses[1]) < 1e-12, losses
print(f"rank {dist.get_rank()} of {dist.get_world_size()} is right", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_one_warning_has_the_cost_between_hosts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(2, rate="400mbit") as cluster:
        output = check(torchrun(cluster, 1, script), 2)
    (rate,) = re.findall(r"the 2 ranks of a model are on 2 hosts\. .*, here at (\d+) MB/s", output)
    # 400 Mbit/s in each direction; bursts exceed it.
    assert 20 < int(rate) < 100
