"""`shard_optimizer_state`: scripts for SMP train to the same bits, and resume with any number of replicas."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_models import Language, batches, language_loss
from torch import Tensor, nn
from torch_spawn import run

import smdp
import smdp.torch.model_parallel as smp

STEPS = batches(4, 8)


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay by name, as scripts write it."""
    named = dict(model.named_parameters())
    decayed = [each for name, each in named.items() if name.endswith("weight") and each.ndim > 1]
    others = [each for each in named.values() if not any(each is one for one in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


class Job:
    """A training script."""

    def __init__(
        self, partitions: int, is_sharded: bool, *, slices: int = 1, is_wrapped_first: bool = True
    ) -> None:
        smp.init(
            {
                "partitions": partitions,
                "tensor_parallel_degree": slices,
                "microbatches": 2,
                "ddp": True,
                "skip_tracing": True,
                "shard_optimizer_state": is_sharded,
            }
        )
        torch.manual_seed(0)
        module = Language(4, tied=True)
        for block in module.blocks:
            smp.set_tensor_parallelism(block.wide, slices > 1)
        if not is_wrapped_first:
            self.optimizer = smp.DistributedOptimizer(grouped(module))
        self.model = smp.DistributedModel(module)
        if is_wrapped_first:
            self.optimizer = smp.DistributedOptimizer(grouped(self.model))
        self.scaler = smp.amp.GradScaler(init_scale=2.0**8)

        @smp.step
        def forward_backward(ids: Tensor) -> Tensor:
            loss = language_loss(self.model(ids), {"ids": ids})
            self.model.backward(self.scaler.scale(loss))
            return loss

        self.forward_backward = forward_backward

    def train(self, batch: dict[str, Tensor]) -> None:
        self.optimizer.zero_grad()
        self.forward_backward(batch["ids"].chunk(smp.dp_size())[smp.dp_rank()])
        self.scaler.unscale_(self.optimizer)
        norm = self.optimizer.clip_master_grads(1e3)
        assert 0 < norm < 1e3
        self.scaler.step(self.optimizer)
        self.scaler.update()


@contextlib.contextmanager
def job(partitions: int, is_sharded: bool, **options: Any) -> Iterator[Job]:
    yield Job(partitions, is_sharded, **options)
    smp.barrier()
    smp.shutdown()


def local(model: Any) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.local_named_parameters()}


def same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one.keys() == other.keys() and all(
        same(value, other[key])
        if isinstance(value, dict)
        else torch.equal(torch.as_tensor(value), torch.as_tensor(other[key]))
        for key, value in one.items()
    )


def check_names(found: Job) -> None:
    """What SMP's scripts ask about virtual parameters."""
    model, optimizer = found.model, found.optimizer
    assert optimizer.redefined_params
    virtual = dict(model.virtual_named_parameters())
    whole = dict(model.local_named_parameters())
    index = optimizer.param_name_to_index()
    assert index.keys() == virtual.keys()
    assert sorted(index.values()) == list(range(len(virtual)))
    by_index, by_id = optimizer._param_index_to_param_local(), optimizer._param_id_to_index()
    shard = optimizer.local_state_dict(gather_if_shard=False)
    for name, piece in virtual.items():
        parameter = whole[name.partition("[")[0]]
        _, begin, end = shard["_smp_shard"]["pieces"][index[name]]
        assert piece.numel() == end - begin
        assert piece.data_ptr() == parameter.data_ptr() + begin * parameter.element_size()
        assert by_index[index[name]] is piece and by_id[id(piece)] == index[name]
        assert shard["state"][index[name]]["exp_avg"].shape == piece.shape
    # A virtual parameter has the options of its group.
    for group in shard["param_groups"]:
        for number in group["params"]:
            name = shard["_smp_shard"]["pieces"][number][0]
            assert group["weight_decay"] == (0.1 if whole[name].ndim > 1 and name != "places" else 0.0)
    sliced = [each.numel() for each in whole.values() if model.is_distributed_parameter(each)]
    assert (sum(sliced) > 0) == (smp.tp_size() > 1)
    total = sum(each.numel() for each in whole.values()) + (smp.tp_size() - 1) * sum(sliced)
    own = sum(each.numel() for each in virtual.values())
    assert own <= 1.01 * total / smp.dp_size()


def trains_to_the_same_bits(partitions: int, slices: int = 1) -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], f"saved-{partitions}-{slices}")
    with job(partitions, is_sharded=False, slices=slices) as plain:
        assert not plain.optimizer.redefined_params
        for batch in STEPS[:3]:
            plain.train(batch)
        expected, state = local(plain.model), copy.deepcopy(plain.optimizer.state_dict())
        own = copy.deepcopy(plain.optimizer.local_state_dict())
        plain.train(STEPS[3])
        final = local(plain.model)
    with job(partitions, is_sharded=True, slices=slices) as sharded:
        for batch in STEPS[:3]:
            sharded.train(batch)
        assert same(local(sharded.model), expected)
        check_names(sharded)
        found, mine = sharded.optimizer.state_dict(), sharded.optimizer.local_state_dict()
        if smp.rdp_rank() == 0:
            assert same(found["state"], state["state"]) and found["param_groups"] == state["param_groups"]
            assert same(mine["state"], own["state"]) and mine["_smp_parameters"] == own["_smp_parameters"]
        else:
            assert found == mine == {}
        smp.save_checkpoint(folder, "three", True, sharded.model, sharded.optimizer, {"step": 3})
        smp.save_checkpoint(folder, "whole", False, sharded.model)
        shard = copy.deepcopy(sharded.optimizer.local_state_dict(gather_if_shard=False))
        smp.save(shard, folder / "optimizer.pt", partial=True, v3=True)
        if smp.rank() == 0:
            torch.save(state["state"], folder / "expected.pt")
        sharded.train(STEPS[3])
        assert same(local(sharded.model), final)
        # A shard in memory is loaded with those of the other replicas.
        sharded.optimizer.load_state_dict(shard)
        again = sharded.optimizer.local_state_dict(gather_if_shard=False)
        assert same(again["state"], shard["state"])
    assert len(list(folder.glob("three_partial/optimizer_*"))) == smp_world()
    assert len(list(folder.glob("three_partial/model_*"))) == partitions * slices
    # A sharded run resumes, and an unsharded one: before the first step, or after it.
    for is_sharded in (True, False):
        with job(partitions, is_sharded, slices=slices) as resumed:
            assert smp.resume_from_checkpoint(folder, "three") == {"step": 3}
            resumed.train(STEPS[3])
            assert same(local(resumed.model), final)
            resumed.optimizer.load_state_dict(smp.load(folder / "optimizer.pt", partial=True))
            found = resumed.optimizer.state_dict()
            assert smp.rdp_rank() > 0 or same(found["state"], state["state"])


def state_of_slices() -> None:
    """State is divided by all data-parallel ranks; what slices have whole is small in a transformer."""
    for optimize in ("memory", "speed"):
        keys: dict[str, Any] = {"tensor_parallel_degree": 2, "optimize": optimize}
        smp.init({"ddp": True, "shard_optimizer_state": True, **keys})
        sizes: dict[str, Any] = {"num_attention_heads": 4, "attention_head_size": 16, "hidden_size": 64}
        lengths: dict[str, Any] = {"vocab_size": 256, "num_positions": 32, "causal_mask_size": 32}
        head = smp.nn.DistributedTransformerLMHead(num_layers=2, intermediate_size=256, **sizes, **lengths)
        model = smp.DistributedModel(head)
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
        ids = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(smp.dp_rank()))
        model((ids, None, None, None, ids))[0].mean().backward()
        optimizer.step()
        states = optimizer.local_state_dict(gather_if_shard=False)["state"].values()
        own = sum(each["exp_avg"].nbytes + each["exp_avg_sq"].nbytes for each in states)
        # The word embedding is also the head.
        total = sum({each.data_ptr(): 2 * each.nbytes for each in model.state_dict().values()}.values())
        assert 0.99 < own * smp.dp_size() / total <= 1.01, (optimize, own, total)
        smp.barrier()
        smp.shutdown()


def test_state_of_slices() -> None:
    run(state_of_slices, 4)


def smp_world() -> int:
    return int(os.environ["WORLD_SIZE"])


def two_by_two() -> None:
    trains_to_the_same_bits(2)
    with job(2, is_sharded=True) as sharded:
        sharded.train(STEPS[0])
        with pytest.raises(ValueError, match="Create only one for a model"):
            smp.DistributedOptimizer(torch.optim.SGD(sharded.model.parameters(), lr=0.1))


def test_two_partitions_with_two_replicas(tmp_path: Path) -> None:
    run(two_by_two, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def refuses_other_options_on_a_slice() -> None:
    with job(2, is_sharded=True, slices=2) as found:
        found.optimizer.param_groups[0]["lr"] = 0.1 * (1 + smp.tp_rank())
        with pytest.raises(ValueError, match=r"has lr=0\.1 in group 0, and rank [13] has lr=0\.2"):
            found.train(STEPS[0])


def refuses_a_group_on_some_ranks() -> None:
    found = Job(2, is_sharded=True, slices=2)
    found.train(STEPS[0])
    if smp.tp_rank() == 1:
        with pytest.raises(smdp.SmdpError, match=r"is in optimizer\.add_param_group\(\), but rank"):
            found.optimizer.add_param_group({"params": []})
    else:
        with pytest.raises(smdp.SmdpError):
            found.train(STEPS[1])


def fails_and_saves() -> None:
    """A step that failed does not keep the state from being saved."""
    with job(1, is_sharded=True, slices=2) as found:
        found.train(STEPS[0])
        found.optimizer.sharded.settle()
        smp.barrier()
        smp.state.running.mesh.abort("a step failed")
        state = found.optimizer.state_dict()
        assert smp.rdp_rank() > 0 or all("exp_avg" in each for each in state["state"].values())


def resume_slices_alone() -> None:
    resumes_on_other_replicas(2)


def slices_beside_whole_modules() -> None:
    """The state of modules that are not distributed is divided by the ranks of all slices."""
    trains_to_the_same_bits(1, slices=2)
    trains_to_the_same_bits(2, slices=2)
    refuses_other_options_on_a_slice()
    fails_and_saves()
    refuses_a_group_on_some_ranks()


def test_slices_with_and_without_replicas(tmp_path: Path) -> None:
    run(slices_beside_whole_modules, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})
    run(resume_slices_alone, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def one_partition() -> None:
    trains_to_the_same_bits(1)


def resumes_on_other_replicas(slices: int) -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], f"saved-1-{slices}")
    expected = torch.load(folder / "expected.pt")
    with job(1, is_sharded=True, slices=slices, is_wrapped_first=False) as resumed:
        assert resumed.optimizer.redefined_params
        smp.resume_from_checkpoint(folder, "three")
        found = resumed.optimizer.state_dict()
        assert smp.rdp_rank() > 0 or same(found["state"], expected)
        resumed.optimizer.load_state_dict(smp.load(folder / "optimizer.pt", partial=True))
        found = resumed.optimizer.state_dict()
        assert smp.rdp_rank() > 0 or same(found["state"], expected)


def guarded_save() -> None:
    """A guard that is right without sharding is wrong with it."""
    found = Job(1, is_sharded=True)
    if smp.rdp_rank() == 0:
        with pytest.raises(smdp.SmdpError, match="all ranks of the job must call"):
            smp.save_checkpoint(os.environ["SMDP_TEST_FOLDER"], "one", True, None, found.optimizer)


def resume_and_guard() -> None:
    resumes_on_other_replicas(1)
    guarded_save()


def test_one_partition_resumes_with_another_number_of_replicas(tmp_path: Path) -> None:
    run(one_partition, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})
    run(resume_and_guard, 3, env={"SMDP_TEST_FOLDER": str(tmp_path)})
