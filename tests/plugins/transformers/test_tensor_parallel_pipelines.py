"""Models of transformers, divided over 2 ranks and split into 2 stages, train as they do in one process."""

from __future__ import annotations

import copy
import os
import traceback
from typing import Any

import pytest
import torch
from beside_one_process import farthest_in_pipeline
from tensor_parallel_models import FAMILIES, MORE, inputs_of, made
from transformers_spawn import run

from smdp.torch.mesh.cuts import cut_of

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 3


def train_all() -> dict[str, Any]:
    import smdp.torch

    torch.distributed.init_process_group("smdp")
    found: dict[str, Any] = {}
    for family in os.environ["FAMILIES"].split(";"):
        try:
            torch.manual_seed(0)
            alone, example = made(family, 0.0), inputs_of(family, 4)
            model = copy.deepcopy(alone)
            pipe = smdp.torch.pipeline(model, 2, microbatches=2, tensor=2, example_inputs=example)
            own = {name: cut_of(each) is not None for name, each in pipe.named_parameters()}
            found[family] = [*farthest_in_pipeline(pipe, alone, family, STEPS), own]
        except Exception as error:  # noqa: BLE001 - counts, and ends the groups of all ranks
            found[family] = "".join(traceback.format_exception(error))
            break
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("families", [FAMILIES, MORE], ids=["usual", "more"])
def test_families_train_in_two_stages_of_two_ranks(
    families: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(train_all, 4, timeout=560, env={"FAMILIES": ";".join(families)})
    lines, wrong = [], []
    for family in families:
        found = [rank.get(family, "not reached") for rank in results]
        assert not [each for each in found if isinstance(each, str)], (family, found)
        first, _, second, _ = (each[2] for each in found)
        # Both stages have parameters of their own, and divided ones.
        assert first.keys() - second.keys() and second.keys() - first.keys(), family
        assert any(first.values()) and any(second.values()), family
        loss, gradient = (max(each[place] for each in found) for place in (0, 1))
        lines.append(f"{family:16} tp 2 x pp 2 float32 loss {loss:.1e} gradient {gradient:.1e}")
        if max(loss, gradient) > 1e-5:
            wrong.append(lines[-1])
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert wrong == []
