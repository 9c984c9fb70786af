"""`smdp.plan`: what is counted, what is searched, what is recommended and why the rest is not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from smdp import memory
from smdp._core import all_reduce_seconds
from smdp.plan import Cluster, Option, Plan, advice, plan, snippet
from smdp.plan.candidate import Candidate
from smdp.plan.candidates import Impossible, candidates
from smdp.plan.rank_memory import kinds
from smdp.plan.search import TOLERANCE
from smdp.plan.step_time import Clock
from smdp.plan.work import work_of


def gpt2(layers: int, hidden: int, heads: int, vocabulary: int = 50000, positions: int = 1024) -> Any:
    return memory.read_config(
        {
            "model_type": "gpt2",
            "n_layer": layers,
            "n_embd": hidden,
            "n_head": heads,
            "n_positions": positions,
            "vocab_size": vocabulary,
        }
    )


A100_HOSTS: dict[str, Any] = {"ranks_per_host": 8, "device_memory": 40e9, "flops": 312e12}
FREE: dict[str, Any] = {"latency": 0.0, "layer_overhead": 0.0}  # only bytes and operations take time


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(48, 8192, 64), (96, 12288, 96), (128, 25600, 160)])
def test_work_is_that_of_the_published_formula(layers: int, hidden: int, heads: int) -> None:
    """PTD-P: 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) for forward and backward of a batch."""
    sequence, vocabulary = 2048, 51200
    work = work_of(gpt2(layers, hidden, heads, vocabulary, sequence), sequence)
    published = 72 * sequence * layers * hidden**2
    published *= 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    assert 3 * (layers * work.layer + work.head) == pytest.approx(published, rel=1e-9)


def test_recomputation_is_that_of_the_published_formula() -> None:
    """With all activations computed again: 96 B s l h^2 (1 + s/(6h) + V/(16 l h))."""
    layers, hidden, sequence = 48, 8192, 2048
    model = gpt2(layers, hidden, 64, 51200, sequence)
    cluster = Cluster(flops=1e12, efficiency=1.0)
    clock = Clock(model, cluster, work_of(model, sequence), sequence, "bf16")
    step = clock.step(
        Candidate(pipeline=1, tensor=1, data=1, microbatches=1, microbatch_size=1, checkpointing="each")
    )
    published = 96 * sequence * layers * hidden**2
    published *= 1 + sequence / (6 * hidden) + 51200 / (16 * layers * hidden)
    assert step.total == pytest.approx(published / 1e12, rel=1e-9)


def test_ten_thousand_candidates_in_two_seconds() -> None:
    start = time.process_time()
    found = plan(gpt2(48, 4096, 32), Cluster(hosts=16, **A100_HOSTS), batch=512, sequence=512)
    took = time.process_time() - start
    assert len(found.options) + len(found.unusable) + len(found.rejected) > 10_000
    # Ten times what it takes on two cores of a server: this is no benchmark.
    assert took < 5


def configurations() -> list[Plan]:
    """Amazon's three, with the batch of all their ranks."""
    return [
        plan(gpt2(*shape), Cluster(hosts=hosts, **A100_HOSTS), batch=batch, sequence=512, precision="fp16")
        for shape, hosts, batch in (
            ((48, 4096, 32), 16, 40 * 32),
            ((48, 7168, 64), 16, 32 * 16),
            ((74, 8192, 64), 32, 56 * 16),
        )
    ]


def fitting(found: Plan) -> list[Option]:
    return found.options + [one.option for one in found.unusable if one.option is not None]


def test_reference_configurations() -> None:
    for found, own in zip(configurations(), ((1, 4, 1), (1, 8, 1), (2, 8, 4)), strict=True):
        pipeline, tensor, microbatches = own
        theirs = [
            option
            for option in fitting(found)
            if (option.candidate.pipeline, option.candidate.tensor, option.candidate.microbatches) == own
            and option.candidate.sharding == "zero1"
            and option.candidate.checkpointing == "each"
            and option.candidate.sequence_parallel
        ]
        assert theirs, f"pipeline {pipeline} x tensor {tensor}, {microbatches} microbatches must fit"
        assert found.options[0].seconds <= min(option.seconds for option in theirs)
        # Without sharded states, or without checkpoints, AWS's layouts do not fit.
        names = [one.what for one in found.rejected]
        layout = f"pipeline {pipeline} x tensor {tensor} x data"
        assert any(layout in name and "sharding none, checkpointing each" in name for name in names)
        assert any(layout in name and "sharding zero1, checkpointing none" in name for name in names)


def test_recommended_has_the_fewest_features_of_the_fast_ones() -> None:
    found = plan(gpt2(24, 1024, 16), Cluster(hosts=2, **A100_HOSTS), batch=512, sequence=512)
    best = found.options[0]
    fastest = min(option.seconds for option in found.options)
    assert best.seconds <= fastest * (1 + TOLERANCE)
    # A model that fits one device needs none.
    assert best.candidate.features() == {}
    simulated = [option.seconds for option in found.options[1:] if option.simulation is not None]
    others = [option.seconds for option in found.options[1:] if option.simulation is None]
    assert len(simulated) > 10 and simulated == sorted(simulated) and others == sorted(others)


def test_a_pipeline_comes_last() -> None:
    """AWS's order: sharded states, checkpoints and tensor parallelism first, where they are as fast."""
    cluster = Cluster(hosts=4, ranks_per_host=8, device_memory=16e9, cores_per_host=8, link=1e12)
    found = plan(gpt2(36, 4096, 32), cluster, batch=256, sequence=1024)
    best = found.options[0].candidate
    limit = min(option.seconds for option in found.options) * (1 + TOLERANCE)
    without = [o for o in found.options if o.candidate.pipeline == 1 and o.step.total <= limit * 0.995]
    assert without and best.pipeline == 1


def test_simulation_agrees_with_the_closed_forms() -> None:
    """Equal stages, no hops to speak of: both tell the same bubble."""
    # Too little memory for a rank to hold all of the model.
    cluster = Cluster(
        hosts=4, ranks_per_host=1, device_memory=0.4e9, link=1e20, interconnect=1e20, latency=0.0
    )
    found = plan(gpt2(16, 512, 8, vocabulary=16), cluster, batch=32, sequence=128)
    compared = 0
    for option in found.options:
        one = option.candidate
        if option.simulation is None or one.pipeline == 1 or 16 % (one.pipeline * one.virtual_stages):
            continue
        assert option.simulation.makespan == pytest.approx(
            option.step.total - option.step.reduction, rel=0.02
        )
        compared += 1
    assert compared > 3


def test_every_rejection_says_why() -> None:
    model = gpt2(48, 7168, 64)
    cluster = Cluster(hosts=2, **A100_HOSTS)
    found = plan(model, cluster, batch=32, sequence=512)
    assert found.rejected
    for one in found.rejected:
        if one.option is not None:
            assert "GB of 32.0; the largest part is " in one.why
            assert one.option.estimate.peak > cluster.usable_memory
        else:
            assert one.what and one.why
    reasons = {one.what: one.why for one in found.rejected if one.option is None}
    assert reasons["tensor 16"] == "tensor parallelism must stay within a host, which has 8 ranks"
    assert any("a pipeline would reduce gradients" in why for why in reasons.values())
    assert any("microbatches cannot be divided evenly among" in why for why in reasons.values())
    all_of_them = {one.what for one in candidates(model, cluster, 32, 512) if isinstance(one, Impossible)}
    assert set(reasons) == all_of_them
    three = plan(model, Cluster(hosts=3, **A100_HOSTS), batch=24, sequence=512)
    assert "tensor must divide the 8 ranks of a host" in {one.why for one in three.rejected}


def test_advice_where_nothing_fits() -> None:
    cluster = Cluster(hosts=1, **A100_HOSTS)
    found = plan(gpt2(74, 8192, 64), cluster, batch=32, sequence=512)
    assert not found.options and found.nearest is not None
    text = advice(found)
    assert "Nothing fits 32.0 GB (0.8 of the device's memory)" in text
    assert "optimizer: try more ranks to share optimizer states (--hosts)" in text
    assert "--offload" not in text  # states of a device go nowhere
    on_cores = Cluster(hosts=1, cores_per_host=8, **A100_HOSTS)
    options: dict[str, Any] = {"batch": 32, "sequence": 512}
    assert "--offload" in advice(plan(gpt2(74, 8192, 64), on_cores, **options))
    assert "--offload" not in advice(plan(gpt2(74, 8192, 64), on_cores, offload="disk:/scratch", **options))
    needed = found.nearest.estimate.peak / 0.8
    larger = Cluster(hosts=1, ranks_per_host=8, device_memory=needed * 1.001, flops=312e12)
    assert plan(gpt2(74, 8192, 64), larger, batch=32, sequence=512).options
    assert advice(plan(gpt2(2, 256, 4), cluster, batch=32, sequence=64)) == ""
    uneven = plan(gpt2(2, 256, 4), Cluster(hosts=4, ranks_per_host=1), batch=1, sequence=64)
    assert "a batch of 1 cannot be divided evenly among 4 ranks" in advice(uneven)


@pytest.mark.parametrize("batch", [8, 24, 40, 56])
def test_the_memory_that_the_advice_names_does(batch: int) -> None:
    model = gpt2(12, 768 + 64 * batch, 8)
    text = advice(plan(model, Cluster(device_memory=1e9), batch=batch, sequence=512))
    named = float(text.split("Devices with ")[1].split(" GB")[0])
    assert plan(model, Cluster(device_memory=named * 1e9), batch=batch, sequence=512).options


def test_gradients_cross_a_hosts_link_once() -> None:
    """8 ranks of one group on each of 2 hosts: 2 (M - 1) / M of the bytes per host, whatever their number."""
    model = gpt2(4, 1024, 16)
    cluster = Cluster(hosts=2, ranks_per_host=8, link=1e9, interconnect=1e15, flops=1e30, **FREE)
    clock = Clock(model, cluster, work_of(model, 128), 128, "bf16")
    step = clock.step(Candidate(pipeline=1, tensor=1, data=16, microbatches=1, microbatch_size=1))
    assert step.reduction == pytest.approx(2 * memory.parameters(model) / 1e9, rel=1e-5)
    split = clock.step(Candidate(pipeline=1, tensor=8, data=2, microbatches=1, microbatch_size=1))
    assert split.reduction == pytest.approx(step.reduction, rel=1e-5)


def test_offload_is_looked_at_when_asked() -> None:
    options: dict[str, Any] = {"batch": 16, "sequence": 512}
    model, cluster = gpt2(48, 4096, 32), Cluster(hosts=1, cores_per_host=8, **A100_HOSTS)
    without = plan(model, cluster, **options)
    assert not any(
        one.candidate.offload_optimizer or one.candidate.offload_activations for one in without.options
    )
    with_it = plan(model, cluster, offload="disk:/scratch", **options)
    of_states = [one for one in with_it.options if one.candidate.offload_optimizer]
    # Only a ShardedOptimizer offloads states, and only activations that are inputs of layers go.
    assert of_states and all(one.candidate.sharding == "zero1" for one in of_states)
    assert all(one.step.offload > 0 for one in of_states)
    with pytest.raises(ValueError, match="offload = 'tape' is not valid; allowed: 'host', or 'disk:'"):
        plan(model, cluster, offload="tape", **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hosts": 0}, "hosts = 0 is not valid; allowed: an integer from 1"),
        ({"hosts": 1.5}, "hosts = 1.5 is not valid"),
        ({"device_memory": -1.0}, "device_memory = -1.0 is not valid"),
        ({"flops": float("nan")}, "flops = nan is not valid"),
        ({"margin": 1.5}, "margin = 1.5 is not valid; allowed: above 0, up to 1"),
        ({"hosts": 65536, "ranks_per_host": 65536}, "hosts x ranks_per_host = 65536 x 65536 is not valid"),
        ({"link": "fast"}, "link = 'fast' is not valid; allowed: a number"),
    ],
)
def test_wrong_cluster(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster(**wrong)


def test_wrong_numbers() -> None:
    model, cluster = gpt2(2, 64, 4), Cluster()
    with pytest.raises(ValueError, match="batch = 0 is not valid; allowed: an integer from 1"):
        plan(model, cluster, batch=0, sequence=8)
    with pytest.raises(ValueError, match="sequence = -1 is not valid"):
        plan(model, cluster, batch=1, sequence=-1)
    with pytest.raises(ValueError, match="precision = 'fp7' is not valid"):
        plan(model, cluster, batch=1, sequence=8, precision="fp7")


def test_a_sharded_optimizer_is_counted_for_each_scope() -> None:
    """State over all ranks, or those of a host: what is kept, what is sent, and how to write it."""
    model, cluster = gpt2(24, 1024, 16), Cluster(hosts=4, **A100_HOSTS)
    found = plan(model, cluster, batch=32, sequence=512)
    same = [
        one
        for one in fitting(found)
        if (one.candidate.pipeline, one.candidate.tensor, one.candidate.microbatches) == (1, 1, 1)
        and one.candidate.checkpointing == "none"
    ]
    none, world, host = (
        next(one for one in same if one.candidate.shards == name)
        for name in ("none", "zero1", "zero1 per host")
    )
    whole = none.estimate.stages[0].optimizer
    assert whole == 12 * memory.parameters(model)
    assert world.estimate.stages[0].optimizer == pytest.approx(whole / 32)
    assert host.estimate.stages[0].optimizer == pytest.approx(whole / 8)
    # Parameters return over the links, or only inside the hosts.
    size = 2 * memory.parameters(model)
    inside = all_reduce_seconds(size, 8, latency=cluster.latency, bandwidth=cluster.interconnect)
    between = all_reduce_seconds(size, 4, latency=cluster.latency, bandwidth=cluster.link)
    assert host.step.reduction - none.step.reduction == pytest.approx(inside / 2)
    hidden = min((inside + between) / 2, world.step.backward)
    assert world.step.reduction == pytest.approx(inside + between - hidden)
    uses = [snippet.python(one.candidate, cluster) for one in (none, world, host)]
    assert ["ShardedOptimizer" in use for use in uses] == [False, True, True]
    assert ['scope="host"' in use for use in uses] == [False, False, True]
    assert "sharding zero1 per host" in host.candidate.describe()
    # One host, or one rank on each, has no second scope.
    for hosts, ranks in ((1, 8), (8, 1)):
        each = candidates(model, Cluster(hosts=hosts, ranks_per_host=ranks), 32, 512)
        assert not any(isinstance(one, Candidate) and one.sharding_degree for one in each)


def llama(**options: Any) -> Any:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "vocab_size": 2048}
    heads = {"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 64}
    return memory.read_config({"model_type": "llama", **sizes, **heads, **options})


def test_layers_are_divided_only_where_they_can_be() -> None:
    cluster = Cluster(ranks_per_host=24)

    def why(model: Any, sequence: int = 128) -> dict[str, str]:
        each = candidates(model, cluster, 24, sequence)
        return {one.what: one.why for one in each if isinstance(one, Impossible)}

    assert why(llama())["tensor 3"] == "tensor must divide the 4 key-value heads, or be a multiple of them"
    assert "tensor 8" not in why(llama())  # each key-value head is on two ranks
    assert why(llama(intermediate_size=2818))["tensor 4"] == "tensor must divide the inner width of 2818"
    assert why(llama(), 126)["pipeline 1 x tensor 4 x data 6, sequence parallel"] == (
        "a sequence of 126 tokens cannot be divided evenly among them"
    )
    assert "pipeline 1 x tensor 2 x data 12, sequence parallel" not in why(llama(), 126)


def test_communication_of_divided_layers() -> None:
    """Four sums per layer, one of the embedding's rows and one for the logits' input."""
    model = llama()
    cluster = Cluster(ranks_per_host=2, interconnect=1e9, flops=1e30, **FREE)
    clock = Clock(model, cluster, work_of(model, 128), 128, "fp32")
    activations = 4 * 4 * 128 * 1024 / 1e9  # an all_reduce on two ranks sends them once
    one: dict[str, Any] = {"pipeline": 1, "tensor": 2, "data": 1, "microbatches": 1, "microbatch_size": 4}
    assert clock.step(Candidate(**one)).total == pytest.approx((4 * 4 + 2) * activations)
    # Two gathers more in each layer, half an all_reduce each, and one at each end of the stack and back.
    divided = clock.step(Candidate(**one, sequence_parallel=True))
    assert divided.total == pytest.approx((5 * 4 + 3) * activations)


def test_a_sharded_optimizer_sums_means_beside_the_gradients() -> None:
    model, cluster = llama(), Cluster(ranks_per_host=4, cores_per_host=4)
    one: dict[str, Any] = {"pipeline": 1, "tensor": 1, "data": 4, "microbatches": 2, "microbatch_size": 4}

    def gradients(sharding: str, degree: int = 0) -> float:
        shards = {"sharding": sharding, "sharding_degree": degree}
        estimate = memory.estimate(model, sequence=128, microbatch_size=4, microbatches=2, data=4, **shards)
        return kinds(estimate, Candidate(**one, **shards), cluster)[0]["gradients"]

    whole = gradients("none")
    assert gradients("zero1") == pytest.approx(whole * (1 + 1 / 4))
    assert gradients("zero1", 2) == pytest.approx(whole * (1 + 1 / 2))
