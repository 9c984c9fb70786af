"""Models of transformers, divided over ranks, train as they do in one process, dropout included."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import traceback
from typing import Any

import pytest
import torch
from beside_one_process import farthest
from tensor_parallel_models import FAMILIES, MORE, InDouble, made
from torch import nn
from transformers_spawn import run

from smdp.torch.mesh.cuts import cut_of

pytestmark = pytest.mark.filterwarnings("ignore")

# One for each layout of attention, each kind of shared embedding, and the experts of a mixture.
QUICK = ("GPT2", "Bert", "T5", "Bloom", "Falcon", "Phi3", "Mixtral", "Qwen3", "DeepseekV2", "GraniteSWA")


def whole_layers(model: nn.Module) -> list[str]:
    """The linear layers of blocks that are not divided."""
    layers = [name for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    return [
        name
        for name in layers
        if re.search(r"\.\d+\.", name) and cut_of(model.get_submodule(name).weight) is None  # type: ignore[arg-type]
    ]


def train_all() -> dict[str, Any]:
    import smdp.torch

    torch.distributed.init_process_group("smdp")
    steps, is_double = int(os.environ["STEPS"]), os.environ["IS_DOUBLE"] == "True"
    if is_double:
        torch.set_default_dtype(torch.float64)
    found: dict[str, Any] = {}
    for family in os.environ["FAMILIES"].split(";"):
        try:
            torch.manual_seed(0)
            alone = made(family).to(torch.get_default_dtype())
            model = smdp.torch.tensor_parallel(copy.deepcopy(alone), torch.distributed.get_world_size())
            with InDouble() if is_double else contextlib.nullcontext():
                found[family] = [*farthest(model, alone, family, steps), whole_layers(model)]
        except Exception as error:  # noqa: BLE001 - counts, and ends the groups of all ranks
            found[family] = "".join(traceback.format_exception(error))
            break
    return found


def check(families: tuple[str, ...], ranks: int, steps: int, is_double: bool) -> list[str]:
    env = {"FAMILIES": ";".join(families), "STEPS": str(steps), "IS_DOUBLE": str(is_double)}
    results = run(train_all, ranks, timeout=560, env=env)
    bound, kind = (1e-9, "float64") if is_double else (1e-5, "float32")
    lines, wrong = [], []
    for family in families:
        found = [rank.get(family, "not reached") for rank in results]
        assert not [each for each in found if isinstance(each, str)], (family, found)
        # Latent attention has two layers whose outputs all heads share.
        whole = [name for name in found[0][2] if not name.endswith(("kv_a_proj_with_mqa", "mlp.gate"))]
        assert whole == [], family
        loss, gradient = (max(each[place] for each in found) for place in (0, 1))
        lines.append(f"{family:16} tp {ranks} {kind} loss {loss:.1e} gradient {gradient:.1e}")
        if max(loss, gradient) > bound:
            wrong.append(lines[-1])
    assert wrong == []
    return lines


def test_a_family_of_each_layout_trains_like_one_process() -> None:
    check(QUICK, 2, 2, is_double=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("families", [FAMILIES, MORE], ids=["usual", "more"])
def test_families_train_like_one_process(
    families: tuple[str, ...], ranks: int, is_double: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check(families, ranks, 5 if is_double else 20, is_double)
    with capsys.disabled():
        print("", *lines, sep="\n")
