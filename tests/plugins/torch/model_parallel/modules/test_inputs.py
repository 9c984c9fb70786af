"""The arguments of a step where ranks of a pipeline pass different ones: those of pp_rank 0 count."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from pipeline_models import Chain, adam, differences, made, only_x, rows, square_loss, train_alone
from torch import Tensor
from torch_spawn import run

import smdp.torch.model_parallel as smp
from smdp.torch.model_parallel.modules.input_digest import digest
from smdp.torch.model_parallel.modules.sent_inputs import broadcast

STEPS = rows(3, 16)
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Batch:
    x: Tensor | None
    y: Tensor | None

    def smp_slice(self, count: int, index: int, axis: int) -> Batch:
        assert self.x is not None and self.y is not None
        return Batch(self.x.chunk(count, axis)[index], self.y.chunk(count, axis)[index])


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Tensor | None) -> None:
        self.x = x

    def smp_slice(self, count: int, index: int, axis: int) -> Slots:
        return self


def of_scripts() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """What pp_rank 0 passes of a batch, and what the others do: positional and keyword arguments."""
    return {
        "empty": (lambda x, y: ((x, y), {}), lambda x, y: ((x[:, :0], y.new_zeros(0)), {})),
        "dummy": (
            lambda x, y: ((x, y), {}),
            lambda x, y: ((torch.ones(x.shape, dtype=torch.int64), y + 1), {}),
        ),
        "none": (lambda x, y: ((), {"x": x, "y": y}), lambda x, y: ((), {"x": None, "y": None})),
        "nothing": (lambda x, y: ((), {"x": x, "y": y}), lambda x, y: ((), {})),
        "dict": (lambda x, y: (({"x": x, "y": y},), {}), lambda x, y: ((None,), {})),
        "mapping": (lambda x, y: ((UserDict(x=x, y=y),), {}), lambda x, y: (({},), {})),
        "tuple": (lambda x, y: ((Pair(x, y),), {}), lambda x, y: (((),), {})),
        "object": (lambda x, y: ((Batch(x, y),), {}), lambda x, y: ((Batch(None, None),), {})),
    }


def data_on_the_first_stage() -> None:
    replicas = torch.distributed.get_world_size() // 2
    alone = made(Chain)
    train_alone(alone, STEPS, 2 * replicas, square_loss, only_x)
    for name, (real, other) in of_scripts().items():
        smp.init({"partitions": 2, "microbatches": 2, "ddp": True})
        model = smp.DistributedModel(made(Chain))
        optimizer = smp.DistributedOptimizer(adam(model))

        @smp.step
        def step(model: Any, args: Any, x: Any = None, y: Any = None, **kwargs: Any) -> Tensor:
            if isinstance(x, (dict, UserDict)):
                x, y = x["x"], x["y"]
            elif isinstance(x, (Pair, Batch)):
                x, y = x.x, x.y
            assert args.rank == smp.rank()  # an object without tensors is each rank's own
            loss = square_loss(model(x), {"y": y})
            model.backward(loss)
            return loss

        # A Namespace, as scripts pass it.
        options = argparse.Namespace(rank=smp.rank())
        for batch in STEPS:
            mine = {key: value.chunk(replicas)[smp.rdp_rank()] for key, value in batch.items()}
            args, kwargs = (real if smp.pp_rank() == 0 else other)(mine["x"], mine["y"])
            optimizer.zero_grad()
            loss = step(model, options, *args, **kwargs)
            optimizer.step()
            assert all(
                torch.equal(loss.concat(), each) for each in smp.allgather(loss.concat(), smp.PP_GROUP)
            )
        far = differences(model, alone)
        assert all(value < 1e-6 for value in far.values()) if replicas > 1 else far == {}, (name, far)
        smp.shutdown()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_data_on_the_first_stage(ranks: int) -> None:
    run(data_on_the_first_stage, ranks)


def ranks_that_differ_later() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdp").addHandler(handler)
    logging.getLogger("smdp").setLevel(logging.INFO)
    smp.init({"partitions": 2, "microbatches": 2})
    model = smp.DistributedModel(made(Chain))

    @smp.step
    def look(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    x, is_first = STEPS[0]["x"], smp.pp_rank() == 0
    with torch.no_grad():
        expected = look(x).concat()
        assert torch.equal(look(x if is_first else x[:2]).concat(), expected)
        # From here on also where shapes are the same.
        assert torch.equal(look(x if is_first else x + 1).concat(), expected)
    told = [text for text in records if "pass different arguments to look" in text]
    assert len(told) == is_first

    @smp.step
    def with_object(x: Any) -> Tensor:
        return model(x["x"])  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="its argument 'x' contains tensors and cannot be pickled"):
        with_object({"x": x, "f": lambda: None} if is_first else None)
    smp.shutdown()


def test_ranks_that_differ_later() -> None:
    run(ranks_that_differ_later)


def one_rank_that_fails() -> None:
    smp.init({"partitions": 2, "microbatches": 2})
    model, x, is_first = smp.DistributedModel(made(Chain)), STEPS[0]["x"], smp.pp_rank() == 0

    @smp.step
    def look(x: Any, *objects: Any) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    def refused(*args: Any, **kwargs: Any) -> str:
        with torch.no_grad(), pytest.raises(TypeError if is_first else RuntimeError) as caught:
            look(*args, **kwargs)
        return str(caught.value)

    # Before the ranks differ, and after.
    for _ in range(2):
        told = refused(**({"z": 1} if is_first else {"x": x}))
        assert is_first or told == "[smdp] rank 0: TypeError: missing a required argument: 'x'", told
        with torch.no_grad():
            look(x if is_first else None, argparse.Namespace())
    objects = [argparse.Namespace(), argparse.Namespace()]
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError if is_first else ValueError) as caught:
            look(x, *objects[: 2 if is_first else 1])
        assert "look got no argument objects[1] on pp_rank 1, but pp_rank 0 passes an object" in str(
            caught.value
        )
    with torch.no_grad():
        look(x, objects[0])
    smp.shutdown()


def test_one_rank_that_fails() -> None:
    run(one_rank_that_fails)


def kinds_of_tensors() -> None:
    is_first = torch.distributed.get_rank() == 0
    base = torch.arange(24.0).reshape(2, 3, 4)
    trained = torch.ones(2, requires_grad=True)
    kinds = [
        base,
        base.permute(2, 0, 1),
        base[:, ::2],
        base[:1].expand(5, 3, 4),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.empty(0, 3),
        torch.tensor([1 + 2j]).conj(),
        base.to(torch.bfloat16),
        base.to_sparse(),
    ]
    sent = {("kinds", None): kinds, ("twice", None): (base, [base]), ("trained", None): trained}
    sent |= {
        ("array", None): numpy.arange(3),
        ("plain", None): {"a": 1, "b": None},
        ("d", 0): torch.device("cpu"),
    }
    sent |= {("own", None): argparse.Namespace(who="first")}
    given = sent if is_first else {("own", None): argparse.Namespace(who="other"), ("plain", None): 3}
    found, own = broadcast(given, torch.distributed.group.WORLD)
    assert own == {("own", None)}
    assert list(found) == list(sent)
    for ours, theirs in zip(found["kinds", None], kinds, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours.to_dense(), theirs.to_dense())
    assert found["kinds", None][1].stride() == kinds[1].stride()
    assert found["twice", None][0] is found["twice", None][1][0] is found["kinds", None][0]
    assert found["trained", None].requires_grad and found["array", None].tolist() == [0, 1, 2]
    assert found["plain", None] == {"a": 1, "b": None} and found["d", 0].type == "cpu"
    assert found["own", None].who == ("first" if is_first else "other")


def test_kinds_of_tensors() -> None:
    run(kinds_of_tensors)


def test_a_digest_tells_what_counts() -> None:
    x = torch.ones(2, 3)
    different = [
        x,
        x.int(),
        x[:1],
        [x],
        (x,),
        {"x": x},
        {"y": x},
        None,
        1,
        1.0,
        "1",
        numpy.ones(2),
        Batch(x, None),
        Slots(x),
        Slots(None),
    ]
    for with_contents in (False, True):
        assert len({digest(each, with_contents=with_contents) for each in different}) == len(different)
    assert digest(x, with_contents=False) == digest(x + 1, with_contents=False)
    assert digest([x], with_contents=True) != digest([x + 1], with_contents=True)
    assert digest(x, with_contents=True) == digest(x.t().contiguous().t(), with_contents=True)
    # What each rank has of its own does not count.
    ours, theirs = argparse.Namespace(rank=0), argparse.Namespace(rank=1)
    assert digest(ours, with_contents=True) == digest(theirs, with_contents=True)
