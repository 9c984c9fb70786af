"""smp.save_checkpoint and smp.resume_from_checkpoint: folders, what resumes, and what is refused."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_models import Language, adam, batches, language_loss
from torch import Tensor
from torch_spawn import run

import smdp
import smdp.torch.model_parallel as smp

PARTITIONS = int(os.environ.get("WORLD_SIZE", "2"))
JOB = {"partitions": PARTITIONS, "microbatches": 4}
UNEVEN = {**JOB, "auto_partition": False, "default_partition": 0}
STEPS = batches(4)


@contextlib.contextmanager
def job(config: dict[str, Any], *, tied: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    """Give model, optimizer and a training step."""
    smp.init(config)
    torch.manual_seed(0)
    model = smp.DistributedModel(Language(tied=tied, dropout=0.1))
    optimizer = smp.DistributedOptimizer(adam(model))

    @smp.step
    def forward_backward(ids: Tensor) -> Tensor:
        loss = language_loss(model(ids), {"ids": ids})
        model.backward(loss)
        return loss

    def train(batch: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        forward_backward(batch["ids"])
        optimizer.step()

    yield model, optimizer, train
    smp.barrier()
    smp.shutdown()


@smp.step
def evaluate(model: Any, ids: Tensor) -> Tensor:
    return model(ids)["logits"]  # type: ignore[no-any-return]


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(torch.as_tensor(value), torch.as_tensor(second[name])) for name, value in first.items()
    )


def cut_unevenly(model: Any) -> None:
    *_, before_last, last = model.get_module().blocks
    for module, stage in zip((before_last, last, model.get_module().head), range(-3, 0), strict=True):
        smp.set_partition(module, max(0, PARTITIONS + stage))


def check_parts_of_another_cut() -> None:
    """What scripts save by themselves says nothing of the cut, which depends on measured times."""
    file = Path(os.environ["SMDP_TEST_FOLDER"], "own.pt")
    with job(JOB) as (model, optimizer, train):
        for batch in STEPS[:3]:
            train(batch)
        own = {"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}
        smp.save(own, file, partial=True)
        names = set(own["model"])
        saved, moments = model.state_dict(), optimizer.state_dict()["state"]
    for is_cut in (False, True):
        with job(UNEVEN) as (model, optimizer, train):
            cut_unevenly(model)
            if is_cut:
                train(STEPS[0])
            own = smp.load(file, partial=True)
            model.load_state_dict(own["model"])
            optimizer.load_state_dict(own["optimizer"])
            with torch.no_grad():
                evaluate(model, STEPS[0]["ids"])
            has_moved = set(model.local_state_dict()) != names
            assert any(smp.allgather(has_moved, smp.WORLD))
            assert same(model.state_dict(), saved)
            found = optimizer.state_dict()["state"]
            assert found.keys() == moments.keys() and all(same(found[key], moments[key]) for key in found)
            train(STEPS[3])
    with job(UNEVEN) as (model, optimizer, train):
        cut_unevenly(model)
        train(STEPS[0])
        own["optimizer"]["_smp_parameters"][0][0] = "other"
        with pytest.raises(ValueError, match="the parts of all ranks"):
            optimizer.load_state_dict(own["optimizer"])


def check_layouts_and_resume() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "checkpoints")
    with job(JOB) as (model, optimizer, train):
        with pytest.raises((ValueError, RuntimeError), match="before the first step, which"):
            smp.save_checkpoint(folder, tag="early", model=model)
        for batch in STEPS[:3]:
            train(batch)
        content = {"step": 3, "names": ["a", 1.5]} if smp.rank() == 0 else None
        smp.save_checkpoint(folder, "step3", True, model, optimizer, content)
        assert (folder / "newest").read_text() == "step3"
        smp.save_checkpoint(str(folder), "whole", partial=False, model=model, user_content=content)
        saved = model.state_dict()
        train(STEPS[3])
        final = model.local_state_dict()
    assert sorted(path.name for path in (folder / "step3_partial").iterdir()) == [
        *(f"model_{stage}_0.pt" for stage in range(PARTITIONS)),
        *(f"optimizer_{stage}_0.pt" for stage in range(PARTITIONS)),
        "partition_decision.pt",
        "user_content.pt",
    ]
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "newest",
        "user_content_whole",
        "whole",
    ]
    assert (folder / "newest").read_text() == "whole"
    assert torch.load(folder / "step3_partial" / "model_0_0.pt")["_smp_is_partial"] is True
    plain = Language()
    plain.load_state_dict(torch.load(folder / "whole"))
    assert same(plain.state_dict(), saved)

    # A partial checkpoint goes on to the same bits, and fixes the cut, which would be another one here.
    for config in (JOB, UNEVEN):
        with job(config) as (model, optimizer, train):
            if config is UNEVEN:
                cut_unevenly(model)
            assert smp.resume_from_checkpoint(folder, tag="step3")["names"] == ["a", 1.5]
            train(STEPS[3])
            assert same(model.local_state_dict(), final)
    # A whole one: the model only, into any number of partitions.
    for config in (JOB, {"partitions": 1, "microbatches": 4, "ddp": True}):
        with job(config) as (model, _, _):
            assert smp.resume_from_checkpoint(folder, partial=False)["step"] == 3
            with torch.no_grad():
                evaluate(model, STEPS[0]["ids"])
            assert same(model.state_dict(), saved)


def check_refusals() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "checkpoints")
    error = (ValueError, RuntimeError)

    def refused(match: str, tag: str | None = "step3", **options: Any) -> None:
        with pytest.raises(error, match=match) as found:
            smp.resume_from_checkpoint(folder, tag, **options)
        assert str(found.value).startswith("[smdp] ")

    smp.init(JOB)
    refused("there is no smp.DistributedModel in this process yet")
    torch.manual_seed(0)
    smp.DistributedModel(Language())
    refused("no smp.DistributedOptimizer in this process yet.*or pass load_optimizer=False")
    assert smp.resume_from_checkpoint(folder, "step3", load_optimizer=False)["step"] == 3
    refused("no complete partial checkpoint.*partial checkpoints in .*: step3", "step4")
    refused("contains no full checkpoint 'step3'; there is a partial checkpoint", partial=False)
    refused("contains no full checkpoint 'pytorch_model.bin'", "pytorch_model.bin", partial=False)
    for tag in ("", "../step3", "a\nb", 3):
        refused("is not valid; allowed: a str that is valid as a file name", tag)  # type: ignore[arg-type]
    with pytest.raises(error, match=r"\[smdp\] .*contains no file 'newest'"):
        smp.resume_from_checkpoint(folder / "none")
    with pytest.raises(ValueError, match="num_kept_partial_checkpoints = 0 is not valid"):
        smp.save_checkpoint(folder, "x", num_kept_partial_checkpoints=0)
    with pytest.raises(ValueError, match=r"model = Language is not the smp\.DistributedModel of"):
        smp.save_checkpoint(folder, "x", model=Language())
    with pytest.raises(error, match="cannot be pickled"):
        smp.save_checkpoint(folder, "x", user_content=lambda: 0)
    # One rank's file is damaged, or missing: all say so.
    own = folder / "step3_partial" / "model_1_0.pt"
    smp.barrier()
    if smp.rank() == 0:
        own.write_bytes(own.read_bytes()[:1000])
    smp.barrier()
    refused("model_1_0.pt cannot be read: ", load_optimizer=False)
    smp.barrier()
    if smp.rank() == 0:
        own.unlink()
    smp.barrier()
    refused("is not complete: model_1_0.pt is missing", load_optimizer=False)
    smp.barrier()
    smp.shutdown()

    # Other configurations than the one that saved.
    for config, match in (
        (
            {**JOB, "placement_strategy": "spread"},
            "placement_strategy = DPT, but this job has placement_strategy = TPD",
        ),
        ({**JOB, "schedule": "zb_v"}, r"partitions of stages = \[0, 1\], but this .* = \[0, 1, 1, 0\]"),
        ({"ddp": True}, "saved with partitions = 2, .* but this job has partitions = 1, "),
    ):
        smp.init(config)
        smp.DistributedModel(Language())
        refused(match, load_optimizer=False)
        if "ddp" in config:
            # Replicas other than the first leave saving to it.
            smp.save_checkpoint(folder, "single", model=smp.state.model)
            smp.barrier()
            names = {path.name for path in (folder / "single_partial").iterdir()}
            assert names == {"model_0_0.pt", "partition_decision.pt", "user_content.pt"}
        smp.barrier()
        smp.shutdown()


def check_safetensors(folder: Path, model: Any) -> None:
    """What from_pretrained writes, where there is no file of the tag."""
    torch.manual_seed(7)
    plain = Language(tied=True)
    if importlib.util.find_spec("safetensors") is None:
        with torch.no_grad():
            evaluate(model, STEPS[0]["ids"])
        return
    from safetensors.torch import save_file

    weights = {name: value for name, value in plain.state_dict().items() if name != "head.weight"}
    if smp.rank() == 0:
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    smp.barrier()
    tag = "pytorch_model.bin"
    assert smp.resume_from_checkpoint(folder, tag, partial=False, load_optimizer=False) is None
    with torch.no_grad():
        evaluate(model, STEPS[0]["ids"])
    assert same(model.state_dict(), dict(plain.state_dict()))
    smp.barrier()
    if smp.rank() == 0:  # in several files
        (folder / "model.safetensors").rename(folder / "all.safetensors")
        index = {"weight_map": dict.fromkeys(weights, "all.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    smp.barrier()
    smp.resume_from_checkpoint(folder, tag, partial=False)


def check_translation_and_pruning() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "plain")
    with job(JOB, tied=True) as (model, _, _):
        check_safetensors(folder, model)
        # An empty user content, as transformers writes it.
        smp.save_checkpoint(folder, "pytorch_model.bin", partial=False, model=model)
        smp.barrier()
        if smp.rank() == 0:
            (folder / "user_content_pytorch_model.bin").unlink()
            (folder / "user_content.pt").touch()
        smp.barrier()
        assert smp.resume_from_checkpoint(folder, "pytorch_model.bin", partial=False) is None

        # Translated names, both ways.
        smp.state.module_manager.translate_functions.append(
            (lambda state: {"hf." + n: v for n, v in state.items()}, dict)
        )
        smp.save_checkpoint(folder, "hf", partial=False, model=model)
        smp.save_checkpoint(folder, "own", partial=False, model=model, translate_if_full=False)
        assert all(name.startswith("hf.") for name in torch.load(folder / "hf"))
        assert same(torch.load(folder / "own"), model.state_dict())
        back = {"translate_function": lambda state: {n.removeprefix("hf."): v for n, v in state.items()}}
        assert smp.resume_from_checkpoint(folder, "hf", partial=False, **back) is None

        # Old partial checkpoints go.
        for tag in ("a", "b", "c"):
            smp.save_checkpoint(folder, tag, model=model, num_kept_partial_checkpoints=2)
        assert sorted(path.name for path in folder.glob("*_partial")) == ["b_partial", "c_partial"]
        # A tag that is the name of another one's folder.
        smp.save_checkpoint(folder, "b_partial", model=model, user_content="of b_partial")
        assert smp.resume_from_checkpoint(folder, load_optimizer=False) == "of b_partial"
        smp.save_checkpoint(folder, "b", model=model, num_kept_partial_checkpoints=1)
        assert [path.name for path in folder.glob("*_partial")] == ["b_partial"]

        # One that was cut short is none.
        smp.barrier()
        if smp.rank() == 0:
            (folder / "b_partial" / "partition_decision.pt").unlink()
        smp.barrier()
        with pytest.raises((ValueError, RuntimeError), match="contains no complete partial checkpoint"):
            smp.resume_from_checkpoint(folder, load_optimizer=False)
        smp.barrier()
        if smp.rank() == 0:
            shutil.rmtree(folder)


def check_wrong_guards() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "guards")
    with job(JOB) as (model, optimizer, train):
        # The other one may have found out already, and have gone on.
        pattern = r"tag='y[01]', partial=True\), but rank . has gone on to (.*tag='y[01]'|smp.step)"
        with pytest.raises(smdp.MismatchError, match=pattern):
            smp.save_checkpoint(folder, f"y{smp.rank()}")
        train(STEPS[0])
        if smp.rank() == 0:
            pattern = (
                r"rank 0 is in smp.save_checkpoint\(tag='x', partial=False\), but rank 1 has gone on to"
                r" smp.barrier\(\); all ranks of a model-parallel group must make this call together"
            )
            with pytest.raises(smdp.MismatchError, match=pattern):
                smp.save_checkpoint(folder, "x", partial=False, model=model)
        smp.barrier()
        if smp.rank() == 0:
            gone_on = r"\(\), but rank 1 has gone on to smp.step; all ranks"
            with pytest.raises(smdp.MismatchError, match=r"rank 0 is in model.state_dict" + gone_on):
                model.state_dict()
            with pytest.raises(smdp.MismatchError, match=r"rank 0 is in optimizer.state_dict" + gone_on):
                optimizer.state_dict()
        train(STEPS[0])


def check_all() -> None:
    check_layouts_and_resume()
    check_parts_of_another_cut()
    check_refusals()
    check_translation_and_pruning()
    check_wrong_guards()


def test_checkpoints_of_two_ranks() -> None:
    run(check_all, 2)


def test_layouts_of_four_ranks() -> None:
    run(check_layouts_and_resume, 4)
