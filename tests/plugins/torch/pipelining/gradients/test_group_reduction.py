"""Gradients of replicas on the core's reducer: which ranks average a weight, and what they may hand over."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch_spawn import run

from smdp import _core
from smdp.torch.pipelining.gradients.replica_gradients import ReplicaGradients


def groups_by_weight() -> None:
    rank = dist.get_rank()
    everyone = dist.distributed_c10d._get_default_group()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    parameters = {
        "whole": Parameter(torch.full((3,), float(rank))),
        "slice": Parameter(torch.full((2, 3), float(rank))),
        "late": Parameter(torch.zeros(5)),
        "alone": Parameter(torch.full((1,), float(rank))),
    }
    groups = {"whole": everyone, "slice": pairs[rank % 2], "late": everyone, "alone": None}
    stages = {
        "whole": frozenset({0, 1}),
        "slice": frozenset({0}),
        "late": frozenset({1}),
        "alone": frozenset({0}),
    }
    replicas = ReplicaGradients(parameters, {}, stages, {0, 1}, groups.__getitem__, lambda name: ())
    # Ranks begin with the weights of the first of their group.
    begun = [parameters[name].flatten()[0].item() for name in ("whole", "slice", "alone")]
    assert begun == [0, rank % 2, rank]
    for step in range(2):
        replicas.prepare()
        parameters["whole"].grad = torch.full((3,), float(rank + step))
        # Not in the parameter's order of elements.
        parameters["slice"].grad = torch.full((3, 2), float(rank)).t()
        parameters["alone"].grad = torch.full((1,), float(rank))
        parameters["late"].grad = torch.ones(5) if rank == 0 else None
        replicas.reduce(0)
        replicas.reduce(1)
        replicas.finish()
        grads = {name: parameter.grad for name, parameter in parameters.items()}
        assert torch.equal(grads["whole"], torch.full((3,), 1.5 + step))
        assert torch.equal(grads["slice"], torch.full((2, 3), rank % 2 + 1.0))
        assert torch.equal(grads["alone"], torch.full((1,), float(rank)))
        # One rank has it: the others count as zero, and get the mean.
        assert torch.equal(grads["late"], torch.full((5,), 0.25))
    assert _core.step_count().steps == 4  # two reducers, two steps
    # A parameter that has become smaller is averaged as it is now; a gradient of another size is refused.
    parameters["slice"].data = parameters["slice"].data[:1].clone()
    parameters["slice"].grad = torch.full((1, 3), float(rank))
    replicas.prepare()
    replicas.reduce(0)
    parameters["whole"].grad = parameters["late"].grad = None
    replicas.reduce(1)
    replicas.finish()
    assert torch.equal(parameters["slice"].grad, torch.full((1, 3), rank % 2 + 1.0))
    parameters["whole"].grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match=r"gradient of parameter 'whole' is .*sparse.* sparse=False"):
        replicas.reduce(0), replicas.reduce(1)
    parameters["whole"].grad = None
    parameters["slice"].data = torch.zeros(4, 3)
    with pytest.raises(RuntimeError, match=r"parameter 'slice' was torch\.float32 of 3 elements"):
        replicas.reduce(0)
    dist.barrier()


def test_each_weight_is_averaged_over_the_ranks_that_hold_it() -> None:
    run(groups_by_weight, 4)
