"""The key `fp16`: masters and a loss scale that agree over stages, slices and replicas."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_models import Language, batches, language_loss
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp

Trained = tuple[list[float], dict[str, Tensor]]
STEPS = batches(5, 8)
SCALES = {"init_scale": 2.0**10, "scale_window": 2, "min_scale": 1}


class Job:
    """A training script."""

    def __init__(
        self, *, dynamic: bool = True, scale: float | None = None, is_delayed: bool = False, **keys: Any
    ) -> None:
        smp.init({"microbatches": 2, "ddp": True, "skip_tracing": True, "fp16": True, **keys})
        torch.manual_seed(0)
        with (
            smp.tensor_parallelism(enabled=smp.tp_size() > 1),
            smp.delay_param_initialization(enabled=is_delayed),
        ):
            module = Language(4)
        self.model = smp.DistributedModel(module)
        self.optimizer = smp.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9),
            static_loss_scale=scale,
            dynamic_loss_scale=dynamic,
            dynamic_loss_args=SCALES,
        )

        @smp.step
        def forward_backward(model: Any, ids: Tensor) -> Tensor:
            loss = language_loss(model(ids), {"ids": ids})
            model.backward(loss)
            return loss

        self.forward_backward = forward_backward

    def gradients(self, batch: dict[str, Tensor]) -> Tensor:
        self.optimizer.zero_grad()
        ids = batch["ids"].chunk(smp.dp_size())[smp.dp_rank()]
        return self.forward_backward(self.model, ids).reduce_mean()

    def train(self, batch: dict[str, Tensor]) -> float:
        self.gradients(batch)
        norm = self.optimizer.clip_master_grads(0.5)
        self.optimizer.step()
        return norm

    def end(self) -> None:
        smp.barrier()
        smp.shutdown()


def trajectory(**keys: Any) -> Trained:
    """Returns norms and the trained weights of the whole model; one step overflows."""
    job = Job(**keys)
    assert job.optimizer.loss_scale == 2.0**10
    norms = [job.train(batch) for batch in STEPS[:3]]
    found = {name: each.clone() for name, each in job.model.state_dict().items()}
    assert job.optimizer.loss_scale == 2.0**11
    assert all(each.dtype is torch.float16 for group in job.optimizer.fp16_groups for each in group)
    before = [each.detach().clone() for each in job.model.parameters()]
    job.optimizer.loss_scale = 2.0**40  # the gradients overflow
    assert job.train(STEPS[3]) == -1
    assert job.optimizer.overflow and job.optimizer.loss_scale == 2.0**39
    assert all(map(torch.equal, before, job.model.parameters()))
    job.optimizer.loss_scale = 2.0**10
    norms.append(job.train(STEPS[4]))
    assert not job.optimizer.overflow and job.optimizer.loss_scale == 2.0**10
    check_full_file(job)
    if smp.pp_size() == 1 and smp.rdp_rank() == 0:
        check_hooked_file(job)
    job.end()
    return norms, found


def check_full_file(job: Job) -> None:
    """A full checkpoint has the masters of all slices and stages; with sharded state, the parameters."""
    folder = Path(os.environ["SMDP_TEST_FOLDER"])
    is_sharded = smp.state.cfg.shard_optimizer_state and smp.dp_size() > 1
    whole, state = job.model.state_dict(), job.optimizer.state_dict()["state"] if not is_sharded else {}
    if smp.rdp_rank() == 0:
        smp.save_checkpoint(folder, "full", False, job.model)
    if smp.rank() > 0:
        return
    saved = torch.load(folder / "full")
    assert saved.keys() == whole.keys()
    assert all(torch.equal(saved[name].half(), each) for name, each in whole.items())
    names = [name for name, _ in Language(4).named_parameters()]
    for number, name in enumerate(names):
        if is_sharded:
            assert saved[name].dtype is torch.float16
        else:
            assert saved[name].dtype is torch.float32 and torch.equal(saved[name], state[number]["master"])


def hooked_state(module: Any, state: dict[str, Tensor], *_: Any) -> None:
    """Drops a parameter, and renames another."""
    state.pop("head.weight")
    state["position"] = state.pop("places")


def check_hooked_file(job: Job) -> None:
    """A full checkpoint has what hooks of the module leave, and views of parameters as they are."""
    folder = Path(os.environ["SMDP_TEST_FOLDER"])
    module = job.model.get_module()
    module.register_buffer("first", module.places.detach()[0])
    handle = module._register_state_dict_hook(hooked_state)
    smp.save_checkpoint(folder, "hooked", False, job.model)
    handle.remove()
    if smp.rank() == 0:
        whole, found = (torch.load(folder / name) for name in ("full", "hooked"))
        assert found.keys() ^ whole.keys() == {"head.weight", "places", "position", "first"}
        assert found["first"].shape == whole["places"][0].shape
        assert torch.equal(found["position"].half(), whole["places"].half())


def layouts() -> None:
    """Norms and weights are the same in every layout, with and without sharded state."""
    first: Trained | None = None
    for keys in (
        {},
        {"partitions": 2},
        {"tensor_parallel_degree": 2},
        {"tensor_parallel_degree": 2, "partitions": 2},
    ):
        expected = None
        for is_sharded in (False, True):
            norms, weights = trajectory(shard_optimizer_state=is_sharded, **keys)
            assert all(each.dtype is torch.float16 for each in weights.values())
            first = first or (norms, weights)
            for norm, other in zip(norms, first[0], strict=True):
                assert math.isclose(norm, other, rel_tol=5e-3), (keys, norms, first[0])
            for name, value in weights.items():
                assert torch.allclose(value, first[1][name], atol=4e-3), (keys, name)
            if expected is not None:
                assert expected[0] == norms
                assert all(torch.equal(weights[name], each) for name, each in expected[1].items())
            expected = norms, weights


def test_layouts_agree(tmp_path: Path) -> None:
    run(layouts, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def names() -> None:
    job = Job(dynamic=False, scale=8.0)
    optimizer, model = job.optimizer, job.model
    module = model.module.module
    assert type(module).__name__ == "FP16_Module" and module.module is model.get_module()
    assert not optimizer.dynamic_loss_scale and optimizer.loss_scale == 8.0
    assert optimizer.master_params_created
    for low, wide in zip(optimizer.fp16_groups[0], optimizer.fp32_from_fp16_groups[0], strict=True):
        assert wide.dtype is torch.float32 and torch.equal(wide.half(), low)
    assert model(STEPS[0]["ids"][:2], torch.ones(2, 12))["logits"].dtype is torch.float32
    optimizer.loss_scale = 4.0
    job.gradients(STEPS[0])
    before = [each.grad.clone() for each in optimizer.fp16_groups[0]]
    optimizer.loss_scale = 8.0
    job.gradients(STEPS[0])
    wrong = smp.amp.GradScaler()
    with pytest.raises(RuntimeError, match="Remove the scaler: call model"):
        wrong.step(optimizer)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"Call model\.backward\(loss\)\.$"):
        optimizer.step()
    ratio = before[0].norm() / optimizer.fp16_groups[0][0].grad.norm()
    assert abs(ratio.item() - 0.5) < 1e-2
    job.end()


def delayed() -> None:
    """A model without memory has the values of an ordinary one, rounded."""
    for keys in ({"partitions": 2}, {"tensor_parallel_degree": 2}):
        found = []
        for is_delayed in (False, True):
            job = Job(is_delayed=is_delayed, **keys)
            job.gradients(STEPS[0])
            found.append({name: each.clone() for name, each in job.model.local_named_parameters()})
            assert all(each.dtype is torch.float16 for each in found[-1].values())
            job.end()
        assert all(torch.equal(each, found[1][name]) for name, each in found[0].items()), keys
    smp.init({"fp16_params": True, "ddp": True, "tensor_parallel_degree": 2})
    with smp.tensor_parallelism():
        inner = nn.Linear(4, 4)
    model = smp.DistributedModel(nn.Sequential(inner, nn.LayerNorm(4)))
    assert [each.dtype for each in model.parameters()] == [torch.float16] * 2 + [torch.float32] * 2
    assert model(torch.ones(2, 4)).dtype is torch.float32
    smp.shutdown()


def test_delayed_initialization() -> None:
    run(delayed, 2)


def test_names_and_casts() -> None:
    run(names, 2)


class Echo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, values: list[Tensor], number: Tensor) -> tuple[list[Tensor], list[torch.dtype]]:
        return [each * self.weight for each in values], [values[0].dtype, number.dtype]


def test_a_model_in_bfloat16_is_refused() -> None:
    with pytest.raises(ValueError, match=r"smp\.model_creation\(dtype=torch\.float16\), or build"):
        smp.fp16.FP16_Module(Echo().bfloat16())


def test_positional_inputs_and_outputs_are_converted() -> None:
    model = smp.fp16.FP16_Module(Echo())
    outputs, dtypes = model([torch.ones(2)], number=torch.ones(2))
    assert dtypes == [torch.float16, torch.float32]
    assert outputs[0].dtype is torch.float32
    assert list(model.state_dict()) == ["weight"] and model.weight.dtype is torch.float16


def checkpoints() -> None:
    """Masters and the loss scale resume, also in another layout, and without moments."""
    folder = Path(os.environ["SMDP_TEST_FOLDER"])
    for number, kind in enumerate(("partitions", "tensor_parallel_degree")):
        keys: dict[str, Any] = {kind: 2, "shard_optimizer_state": True}
        root = folder / str(number)
        job = Job(**keys)
        for batch in STEPS[:3]:
            job.train(batch)
        smp.save_checkpoint(root, "three", True, job.model, job.optimizer)
        smp.save(job.optimizer.local_state_dict(gather_if_shard=False), root / "optimizer.pt", v3=True)
        whole, state = job.model.state_dict(), copy.deepcopy(job.optimizer.state_dict())
        job.train(STEPS[3])
        final = {name: each.clone() for name, each in job.model.local_named_parameters()}
        job.end()
        for layout in (keys, {**keys, "shard_optimizer_state": False}):
            job = Job(**layout)
            smp.resume_from_checkpoint(root, "three")
            job.train(STEPS[3])
            assert job.optimizer.loss_scale == 2.0**12, (layout, job.optimizer.loss_scaler.state())
            found = dict(job.model.local_named_parameters())
            assert all(torch.equal(found[name], each) for name, each in final.items()), layout
            if layout["shard_optimizer_state"]:
                job.optimizer.load_state_dict(smp.load(root / "optimizer.pt", partial=True))
                assert job.optimizer.loss_scale == 2.0**11
            if layout["shard_optimizer_state"] or smp.rdp_rank() == 0:
                smp.save_checkpoint(root, "again", True, job.model, job.optimizer)
            job.end()
        found_files = {path.stem.partition("states")[2] for path in (root / "again_partial").glob("fp16*")}
        assert found_files == ({"_0_0", "_1_0"} if number == 0 else {"_0_0", "_0_1"})
        names = {path.name.partition("_s")[0] for path in (root / "three_partial").glob("fp16*")}
        assert names == {"fp16"}
        if os.environ["RANK"] == "0":
            check_fp16_states(root / "three_partial" / "fp16_states_0_0_0.pt", SMP_STATES)
        job = Job(**keys)
        smp.resume_from_checkpoint(root, "three", load_sharded_optimizer_state=False)
        job.gradients(STEPS[3])
        assert job.optimizer.loss_scale == 2.0**11
        check_incomplete_states(root)
        job.end()
        if os.environ["RANK"] == "0":
            torch.save((whole, state), root / "whole.pt")


def check_incomplete_states(root: Path) -> None:
    """A file with fp16 states that is missing, or lacks a key, is refused by name."""
    path = root / "three_partial" / "fp16_states_0_0_1.pt"
    error = (ValueError, RuntimeError)
    smp.barrier()
    if smp.rank() == 0:
        found = torch.load(path, weights_only=False)
        torch.save({key: found[key] for key in found if key != "optimizer_state_dict"}, path)
    smp.barrier()
    with pytest.raises(error, match=r"fp16_states_0_0_1\.pt has no 'optimizer_state_dict'"):
        smp.resume_from_checkpoint(root, "three")
    smp.barrier()
    if smp.rank() == 0:
        path.unlink()
    smp.barrier()
    with pytest.raises(error, match=r"is not complete: fp16_states_0_0_1\.pt is missing"):
        smp.resume_from_checkpoint(root, "three")


SMP_STATES = {
    "loss_scaler",
    "dynamic_loss_scale",
    "overflow",
    "first_closure_call_this_step",
    "optimizer_state_dict",
    "fp32_from_fp16",
}


def check_fp16_states(path: Path, keys: set[str]) -> None:
    """The file has SMP's keys, and torch's optimizer of the masters loads its state."""
    found = torch.load(path, weights_only=False)
    assert found.keys() == keys and found["dynamic_loss_scale"] and not found["overflow"]
    masters = {index: nn.Parameter(each) for index, each in found["fp32_from_fp16"].items()}
    groups = found["optimizer_state_dict"]["param_groups"]
    plain = torch.optim.SGD([{"params": [masters[n] for n in group["params"]]} for group in groups])
    plain.load_state_dict(found["optimizer_state_dict"])
    assert plain.param_groups[0]["momentum"] == 0.9
    assert all(each["momentum_buffer"].shape == one.shape for one, each in plain.state.items())
    assert len(plain.state) == len(masters) > 0


def resume_alone() -> None:
    for number in range(2):
        whole, state = torch.load(Path(os.environ["SMDP_TEST_FOLDER"], str(number), "whole.pt"))
        job = Job()
        job.model.load_state_dict(whole)
        job.optimizer.load_state_dict(state)
        assert job.optimizer.loss_scale == 2.0**11
        masters = job.optimizer.fp32_from_fp16_groups[0]
        assert all(torch.equal(each, state["state"][index]["master"]) for index, each in enumerate(masters))
        assert not all(torch.equal(each.half().float(), each) for each in masters)
        job.end()


def test_checkpoints(tmp_path: Path) -> None:
    run(checkpoints, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})
    run(resume_alone, 1, env={"SMDP_TEST_FOLDER": str(tmp_path)})
