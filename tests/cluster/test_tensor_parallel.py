"""Layers that are divided over two hosts train like one process, and one warning has the cost."""

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
from smdp.torch.mesh.cuts import cut_of

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, values):
        return values + self.down(self.gate(values).sigmoid() * self.up(values))

torch.set_num_threads(1)
dist.init_process_group("smdp")
torch.manual_seed(0)
alone = nn.Sequential(Gated(), Gated()).double()
model = copy.deepcopy(alone)
plan = {"*.gate": "colwise", "*.up": "colwise", "*.down": "rowwise"}
smdp.torch.tensor_parallel(model, dist.get_world_size(), plan)
batches = torch.randn(2, 4, 8).double()
for each in (alone, model):
    optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for values in batches:
            loss = each(values).square().mean()
            loss.backward()
        optimizer.step()
for whole, part in zip(alone.parameters(), model.parameters()):
    cut = cut_of(part)
    whole = whole if cut is None else cut.slices.take(whole)
    assert (whole - part).abs().max() < 1e-12
print(f"rank {dist.get_rank()} of {dist.get_world_size()} is right", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_layers_over_two_hosts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(2, rate="400mbit") as cluster:
        output = check(torchrun(cluster, 1, script), 2)
    (rate,) = re.findall(r"the 2 ranks of a model are on 2 hosts\. .*, here at (\d+) MB/s", output)
    # 400 Mbit/s in each direction; bursts exceed it.
    assert 20 < int(rate) < 100
