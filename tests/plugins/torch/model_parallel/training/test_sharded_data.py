"""Sharded data parallelism under SMP's API: it trains as plain data parallelism does, and clips."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_models import Language, batches, language_loss
from torch import Tensor, nn
from torch_spawn import run

import smdp
import smdp.torch.model_parallel as smp
from smdp.torch import clip_grad_norm_

STEPS = batches(4, 8)
read_whole = smp.sharded_data_parallel_checkpoint.get_full_state_dict_from_sharded_data_parallel_checkpoint


class Job:
    """A training script."""

    def __init__(self, degree: int, *, lr: float = 1e-2, passes: int = 1, **keys: Any) -> None:
        dtype = keys.pop("dtype", torch.float32)
        smp.init(
            {
                "microbatches": 2,
                "ddp": True,
                "sharded_data_parallel_degree": degree,
                "sdp_param_persistence_threshold": 40,
                **keys,
            }
        )
        torch.manual_seed(0)
        with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=dtype):
            module = Language(4, tied=True)
        self.model = smp.DistributedModel(module, backward_passes_per_step=passes)
        named = dict(self.model.named_parameters())
        groups = [
            {"params": [each for each in named.values() if each.ndim > 1], "weight_decay": 0.1},
            {"params": [each for each in named.values() if each.ndim == 1]},
        ]
        self.optimizer = smp.DistributedOptimizer(
            torch.optim.AdamW(groups, lr=lr, eps=1e-4), None, True, dynamic_loss_args={"init_scale": 2.0**10}
        )

        @smp.step
        def forward_backward(model: Any, ids: Tensor) -> Tensor:
            loss = language_loss(model(ids), {"ids": ids})
            model.backward(loss)
            return loss

        self.forward_backward = forward_backward

    def train(self, batch: dict[str, Tensor], *, is_clipped: bool = False) -> float:
        self.optimizer.zero_grad()
        if smp.state.cfg.prescaled_batch:
            ids = batch["ids"].chunk(smp.rdp_size())[smp.rdp_rank()]
        else:
            ids = batch["ids"].chunk(smp.dp_size())[smp.dp_rank()]
        loss = self.forward_backward(self.model, ids).reduce_mean()
        if is_clipped:
            clip_grad_norm_(self.model.get_module(), 0.5)
        self.optimizer.step()
        return loss.item()

    def end(self) -> None:
        smp.barrier()
        smp.shutdown()


def whole(job: Job) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in job.model.state_dict().items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(each.float(), other[name].float(), atol=atol) for name, each in one.items())


def two_of_four() -> None:
    plain = Job(1)
    losses = [plain.train(batch, is_clipped=True) for batch in STEPS]
    expected, state = whole(plain), plain.optimizer.state_dict()["state"]
    plain.end()
    for degree in (2, 4):
        job = Job(degree, sdp_gradient_clipping=0.5)
        assert [job.train(batch) for batch in STEPS] == pytest.approx(losses, rel=1e-5)
        assert close(whole(job), expected, 1e-5)
        found = job.optimizer.state_dict()["state"]
        assert all(torch.allclose(found[n]["exp_avg"], state[n]["exp_avg"], atol=1e-6) for n in state)
        parameters = [each for group in job.optimizer.fp16_groups for each in group]
        own = sum(each.numel() for each in job.optimizer.fp32_partitioned_groups_flat)
        total = sum(each.ds_numel for each in parameters)
        small = sum(each.ds_numel for each in parameters if each.ds_numel < 40)
        assert total == sum(each.numel() for each in expected.values()) - expected["head.weight"].numel()
        assert own == pytest.approx((total - small) / degree + small, rel=0.05)
        assert job.optimizer.ds_param_shard_group.size() == degree
        with pytest.raises(RuntimeError, match="every rank gathers parameters from the others"):
            job.model.join()
        job.end()


def accumulates() -> None:
    """Two steps between two updates give the same parameters as without shards."""
    found = []
    for degree, keys in ((1, {}), (2, {"sdp_gradient_clipping": 1e9})):
        job = Job(degree, passes=2, **keys)
        for batch in STEPS[:2]:
            job.forward_backward(job.model, batch["ids"].chunk(smp.dp_size())[smp.dp_rank()])
        job.optimizer.step()
        found.append(whole(job))
        job.end()
    assert close(*found, 1e-5)


def test_accumulates() -> None:
    run(accumulates, 2)


def test_two_of_four() -> None:
    run(two_of_four, 4)


def sixteen_bits() -> None:
    plain = Job(1)
    losses = [plain.train(batch, is_clipped=True) for batch in STEPS]
    plain.end()
    kinds: list[dict[str, Any]] = [{"bf16": True}, {"fp16": True}]
    for keys in (*kinds, {"bf16": True, "dtype": torch.bfloat16}, {"fp16": True, "dtype": torch.float16}):
        job = Job(2, sdp_gradient_clipping=0.5, **keys)
        found = [job.train(batch) for batch in STEPS]
        # A model that is made in 16 bits has other random numbers.
        assert found == pytest.approx(losses, rel=0.5 if "dtype" in keys else 5e-2), keys
        assert all(each.dtype is torch.float32 for each in job.model.parameters())
        assert job.model(STEPS[0]["ids"])["logits"].dtype is torch.float32
        with pytest.raises(RuntimeError, match="dtype of parameters in shards"):
            job.model.half()
        if "fp16" in keys:
            with pytest.raises(ValueError, match="max_norm is 0; allowed: above 0"):
                job.optimizer.clip_master_grads(0)
            assert job.optimizer.loss_scale == 2.0**10
            job.optimizer.loss_scale = 2.0**60
            before = whole(job)
            job.train(STEPS[0])
            assert job.optimizer.overflow and job.optimizer.loss_scale == 2.0**59
            assert close(whole(job), before, 0)
            job.optimizer.loss_scale = 2.0**10
            job.train(STEPS[0])
            assert not job.optimizer.overflow and not close(whole(job), before, 1e-4)
            before = whole(job)
            language_loss(job.model(STEPS[0]["ids"]), STEPS[0]).backward()
            for name, arguments in (("step", ()), ("clip_master_grads", (1.0,))):
                with pytest.raises(RuntimeError, match=r"model.backward\(loss\) in place of loss.backward"):
                    getattr(job.optimizer, name)(*arguments)
            assert close(whole(job), before, 0)
        job.end()


def test_sixteen_bits() -> None:
    run(sixteen_bits, 2)


def with_slices() -> None:
    """Shards of slices are those of RDP_GROUP, with samples of each rank's own or the same ones."""
    for is_prescaled in (False, True):
        tensor = {"tensor_parallel_degree": 2, "prescaled_batch": is_prescaled}
        plain = Job(1, **tensor)
        assert any(True for _ in plain.model.distributed_modules())
        losses = [plain.train(batch, is_clipped=True) for batch in STEPS]
        expected = whole(plain)
        plain.end()
        for degree, keys in ((2, {"sdp_gradient_clipping": 0.5}), (1, {"shard_optimizer_state": True})):
            job = Job(degree, **tensor, **keys)
            classes = [dict(job.model.default_reducer_named_parameters()).keys()]
            assert "places" in classes[0] and "blocks.0.wide.weight" not in classes[0]
            found = [job.train(batch, is_clipped=degree == 1) for batch in STEPS]
            assert found == pytest.approx(losses, rel=1e-5), (is_prescaled, degree, found, losses)
            assert close(whole(job), expected, 1e-5)
            if degree == 2 and is_prescaled:
                folder = Path(os.environ["SMDP_TEST_FOLDER"])
                smp.save_checkpoint(folder, "slices", True, job.model, job.optimizer)
                check_joined(folder, whole(job))
            job.end()


def check_joined(folder: Path, expected: dict[str, Tensor]) -> None:
    """The whole model is read from the shards of slices, without a job, if all files are there."""
    found = read_whole(folder, tag="slices")
    assert found.keys() == expected.keys() - {"head.weight"}
    assert all(torch.equal(each, expected[name]) for name, each in found.items())
    smp.barrier()
    if smp.rank() == 0:
        (folder / "slices_partial" / "optimizer_1_0.pt").unlink()
        with pytest.raises(ValueError, match=r"2 shards, but 1 files"):
            read_whole(folder, tag="slices")
        (folder / "slices_partial" / "optimizer_1_1.pt").unlink()
        with pytest.raises(ValueError, match=r"the shards of 1 slices.*tensor_parallel_degree = 2; copy"):
            read_whole(folder, tag="slices")


def norm_outside_of_steps(**keys: Any) -> float:
    """Returns the norm of gradients of a backward without a step function, and checks that it is agreed."""
    job = Job(1, tensor_parallel_degree=2, **keys)
    ids = STEPS[0]["ids"].chunk(smp.dp_size())[smp.dp_rank()]
    language_loss(job.model(ids), {"ids": ids}).backward()
    norm = float(clip_grad_norm_(job.model.parameters(), 0.1))
    assert smp.allgather(norm, smp.WORLD) == [norm] * smp.size()
    job.end()
    return norm


def clips_outside_of_steps() -> None:
    """Whole parameters next to slices are averaged before clipping reads their gradients."""
    expected = norm_outside_of_steps()
    kinds: list[dict[str, Any]] = [{"shard_optimizer_state": True}, {"sharded_data_parallel_degree": 2}]
    for keys in kinds:
        assert norm_outside_of_steps(**keys) == pytest.approx(expected, rel=1e-5), keys


def test_clips_outside_of_steps() -> None:
    run(clips_outside_of_steps, 4)


def test_with_slices(tmp_path: Path) -> None:
    run(with_slices, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def by_the_published_rule(root: Path, degree: int, tag: str | None = None) -> dict[str, Tensor]:
    """Rebuilds parameters as Amazon's example script describes it."""
    folder = root / (tag or (root / "newest").read_text())
    content = torch.load(folder / "user_content.pt", weights_only=False)
    flats = []
    for number in range(degree):
        found = torch.load(folder / f"optimizer_{number}.pt", weights_only=False)
        assert found["partition_count"] == degree
        flats.append(torch.cat(found["fp32_flat_groups"]))
    buffers = torch.load(folder / "model_0.pt", weights_only=False)["module"]
    rebuilt, offset = {name: buffers[name] for name in content["buffer_names"]}, 0
    for name, shape in [pair for group in content["param_shapes"] for pair in group.items()]:
        each = -(-shape.numel() // degree)
        parts = [flat[offset : offset + each] for flat in flats]
        rebuilt[name.removeprefix("module.")] = torch.cat(parts)[: shape.numel()].view(shape)
        offset += each
    assert offset == flats[0].numel()
    return rebuilt


def published(source: Path, root: Path) -> None:
    """Lays out a checkpoint as Amazon's example scripts read it, with what only they have in the files."""
    folder = root / "amazon"
    folder.mkdir(parents=True)
    module = {"module.counts": torch.ones(2), "module.places": torch.empty(0)}
    torch.save({"module": module}, folder / "model_0.pt")
    for number in range(2):
        flats = torch.load(source / f"optimizer_{number}.pt", weights_only=False)["fp32_flat_groups"]
        saved = {"partition_count": [2, 2], "fp32_flat_groups": flats, "base_optimizer_state": object}
        torch.save(saved, folder / f"optimizer_{number}.pt")
    content = torch.load(source / "user_content.pt", weights_only=False)
    short = {**saved, "fp32_flat_groups": [each[:-1] for each in saved["fp32_flat_groups"]]}
    torch.save(short, folder / "optimizer_1.pt")
    shutil.copy(source / "user_content.pt", folder)
    with pytest.raises(
        ValueError, match=r"optimizer_1\.pt has a flat tensor of \d+ elements for group 0, who"
    ):
        read_whole(root, tag="amazon")
    torch.save(saved, folder / "optimizer_1.pt")
    assert content["buffer_names"] == []
    content["buffer_names"] = ["module.counts"]
    torch.save({**content, "buffer_names": ["module.lacking"]}, folder / "user_content.pt")
    with pytest.raises(
        ValueError, match=r"model_0\.pt lacks 'lacking', which 'buffer_names' of user_content"
    ):
        read_whole(root, tag="amazon")
    torch.save(content, folder / "user_content.pt")
    assert torch.equal(read_whole(root, tag="amazon")["counts"], torch.ones(2))
    torch.save({**content, "buffer_names": []}, folder / "user_content.pt")
    (root / "newest").write_text("amazon")


def check_published(folder: Path, expected: dict[str, Tensor]) -> None:
    """A folder without smdp's own files has parameters and buffers, and no state of the optimizer."""
    found = read_whole(folder)
    assert found.keys() == expected.keys() - {"head.weight"}
    assert all(torch.equal(each, expected[name]) for name, each in found.items())
    for degree in (4, 1):
        job = Job(degree)
        with pytest.raises(ValueError, match=r"the form of its optimizer's state.*load_optimizer=False"):
            smp.resume_from_checkpoint(folder)
        assert smp.resume_from_checkpoint(folder, load_optimizer=False)["step"] == 3
        assert close(whole(job), expected, 0)
        job.end()


def check_refused(folder: Path) -> None:
    """A checkpoint of another model is refused before a parameter has changed."""

    def without_bias(model: Language) -> None:
        model.norm.bias = None

    def wider(model: Language) -> None:
        model.norm = nn.LayerNorm(3)

    def with_buffer(model: Language) -> None:
        model.register_buffer("counts", torch.zeros(2))

    matches = {without_bias: "has 'norm.bias', which this", with_buffer: "lacks 'counts' of this model"}
    for change in (without_bias, wider, with_buffer):
        for name in ("three", "amazon"):
            smp.init({"ddp": True, "sharded_data_parallel_degree": 2})
            module = Language(4, tied=True)
            change(module)
            model = smp.DistributedModel(module)
            before = {key: each.clone() for key, each in model.state_dict().items()}
            match = matches.get(change, r"'norm\.(weight|bias)' of shape \(\d+,\), but this model has \(3,\)")
            root = folder / "published" if name == "amazon" else folder
            with pytest.raises(ValueError, match=match):
                smp.resume_from_checkpoint(root, name, strict=change in matches, load_optimizer=False)
            assert close(model.state_dict(), before, 0)
            smp.barrier()
            smp.shutdown()


def checkpoints() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"])
    job = Job(2)
    for batch in STEPS[:3]:
        job.train(batch)
    three, state = whole(job), copy.deepcopy(job.optimizer.state_dict()["state"])
    smp.save_checkpoint(folder, "three", True, job.model, job.optimizer, {"step": 3})
    assert (folder / "newest").read_text() == "three_partial"
    smp.barrier()
    if smp.rank() == 0:
        published(folder / "three_partial", folder / "published")
    smp.save_checkpoint(folder, "full", False, job.model)
    smp.save_checkpoint(folder, "weights", True, job.model)
    job.train(STEPS[3])
    four = whole(job)
    job.end()
    check_published(folder / "published", three)
    check_refused(folder)
    by_rule = [by_the_published_rule(folder, 2, tag) for tag in ("three_partial", None)]
    for rebuilt in (*by_rule, read_whole(folder, tag="three"), read_whole(folder, tag="three_partial")):
        assert rebuilt.keys() == three.keys() - {"head.weight"}
        assert all(torch.equal(each, three[name]) for name, each in rebuilt.items())
    assert set(torch.load(folder / "full")) == three.keys()
    for degree in (2, 4, 1):
        job = Job(degree)
        assert smp.resume_from_checkpoint(folder, "three")["step"] == 3
        assert close(whole(job), three, 0)
        found = job.optimizer.state_dict()["state"]
        assert found.keys() == state.keys()
        assert all(torch.equal(found[n]["exp_avg"], state[n]["exp_avg"]) for n in state)
        job.train(STEPS[3])
        if degree > 1:
            assert close(whole(job), four, 1e-6)
        if degree > 1 or smp.rdp_rank() == 0:
            smp.save_checkpoint(folder, "again", True, job.model, job.optimizer)
        job.end()
    # The files that degree 4 had are gone.
    assert {path.stem for path in (folder / "again_partial").iterdir()} == {
        "model_0_0",
        "optimizer_0_0",
        "partition_decision",
        "user_content",
    }
    for tag, is_partial in (("three", True), ("weights", True), ("full", False)):
        job = Job(4)
        smp.resume_from_checkpoint(folder, tag, is_partial, load_sharded_optimizer_state=False)
        assert close(whole(job), three, 0)
        assert not job.optimizer.state_dict()["state"]
        job.end()
    job = Job(4)
    if smp.rank() > 0:
        with pytest.raises(smdp.SmdpError, match="all ranks of the job must"):
            smp.save_checkpoint(folder, "wrong", True, job.model)
    # The first rank leaves.


def test_checkpoints(tmp_path: Path) -> None:
    run(checkpoints, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})
