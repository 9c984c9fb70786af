"""DistributedModel beyond its step: partitions by hand, one partition, gradient scaling, wrong use."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, Layer, adam, differences, made, rows, square_loss, train_alone
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
import smdp.torch.model_parallel as smp
from smdp import SmdpError

STEPS = rows(2)
TWO = {"partitions": 2, "microbatches": 4, "ddp": True}


@contextmanager
def refused(text: str, kind: Any = (ValueError, RuntimeError)) -> Iterator[None]:
    with pytest.raises(kind, match=re.escape(text)):
        yield


@contextmanager
def job(**configuration: Any) -> Iterator[None]:
    smp.init({**TWO, **configuration})
    try:
        yield
    finally:
        smp.shutdown()


@smp.step
def train_step(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = square_loss(model(x), {"y": y})
    model.backward(loss)
    return loss


def train(model: Any, optimizer: Any) -> None:
    for batch in STEPS:
        optimizer.zero_grad()
        train_step(model, batch["x"], batch["y"])
        optimizer.step()


def trained(make: Any = Chain, **options: Any) -> Any:
    torch.manual_seed(0)
    model = smp.DistributedModel(make(), **options).to("cpu")
    optimizer = smp.DistributedOptimizer(adam(model))
    train(model, optimizer)
    return model


class ByHand(nn.Module):
    """Contexts within contexts, a list made inside one and registered outside, and a part of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Layer()
        with smp.partition(1):
            layers = [Layer() for _ in range(2)]
            with smp.partition(0):
                self.second = Layer()
        self.layers = nn.ModuleList(layers)
        self.nested = nn.Module()
        self.nested.inner = Layer()
        self.head = nn.Linear(WIDTH, 1)
        smp.set_partition(self.nested, 1)
        smp.set_partition(self.head, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.nested.inner(x))  # type: ignore[no-any-return]


def partitions_by_hand() -> None:
    alone = made(ByHand)
    train_alone(alone, STEPS, 4, square_loss, lambda model, part: model(part["x"]))
    with job(auto_partition=False, default_partition=0):
        model = trained(ByHand)
        names = {"first": 0, "second": 0, "layers.0": 1, "layers.1": 1, "nested": 1, "head": 1}
        assert {name: model.get_module_partition(name) for name in names} == names
        assert model.get_module_partition(model.get_module().head) == 1
        assert differences(model, alone) == {}
        own = {"first", "second"} if smp.pp_rank() == 0 else {"layers", "nested", "head"}
        assert {name.partition(".")[0] for name, _ in model.local_named_parameters()} == own
    with job():  # ignored where the partitioner decides
        assert differences(trained(ByHand), alone) == {}
    with job(auto_partition=False, default_partition=0), refused("is on partition(s) [1]"):
        trained(Chain)
    with job(auto_partition=False, default_partition=0):
        with refused("assigned to partition 5"), smp.partition(5):
            trained(Chain)
    with refused("partition index -1"), smp.partition(-1):
        pass
    with refused("got str"):
        smp.set_partition("head", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_partitions_by_hand(ranks: int) -> None:
    run(partitions_by_hand, ranks)


class Both(Chain):
    """Returns what its first stage has made, too."""

    def forward(self, x: Tensor) -> Any:
        early = self.layers[0](x)
        return early, super().forward(early)


class Sliced:
    """Cuts itself; its shapes count although it is neither a tensor nor a structure."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def smp_slice(self, count: int, index: int, axis: int) -> Sliced:
        return Sliced(self.x.chunk(count, axis)[index])


def batches_of_any_kind() -> None:
    model = smp.DistributedModel(made(Both))

    @smp.step
    def run_step(x: Sliced, batch: UserDict[str, Tensor]) -> Any:
        early, output = model(x.x)
        model.backward(square_loss(output, {"y": batch["y"]}))
        return early

    alone = made(Both)
    for size in (8, 16, 8):
        batch = rows(1, size)[0]
        found = run_step(Sliced(batch["x"]), UserDict(batch)).concat()
        assert torch.equal(found, torch.cat([alone(part)[0] for part in batch["x"].chunk(4)]))


def several_optimizers() -> None:
    net = made(Chain)
    model = smp.DistributedModel(net)
    free = nn.Parameter(torch.ones(3))
    adams = torch.optim.AdamW(net.layers.named_parameters(), lr=1e-2)
    first = smp.DistributedOptimizer(adams)
    second = smp.DistributedOptimizer(torch.optim.SGD([*net.head.parameters(), free], lr=1e-2))
    model.double()
    train_step(model, STEPS[0]["x"].double(), STEPS[0]["y"].double())
    first.step()
    own = {name for name, parameter in model.named_parameters() if parameter.dtype == torch.float64}
    for optimizer, part, others in ((first, "layers.", 0), (second, "head.", 1)):
        found = len(optimizer.param_groups[0]["params"]) - others
        assert found == sum(name.startswith(part) for name in own)
    assert set(first.param_groups[0]["param_names"]) == {n.removeprefix("layers.") for n in own} - {
        "head.weight",
        "head.bias",
    }
    whole = first.state_dict()
    assert len(whole["state"]) == len(whole["param_groups"][0]["param_names"]) == 16
    first.add_param_group({"params": [free], "param_names": ["free"]})
    assert len(first.state_dict()["param_groups"]) == 2
    model.to("cpu")
    with refused("device and dtype of its parameters can no longer change"):
        model.half()


def gradual_thawing() -> None:
    """A rank sees its own parameters only, and the others must know whether gradients come."""
    model, alone = smp.DistributedModel(made(Chain)), made(Chain)
    optimizer = smp.DistributedOptimizer(adam(model))
    other = adam(alone)
    for number, batch in enumerate(rows(4)):
        for each in (model, alone):
            for name, parameter in each.named_parameters():
                is_early = name.startswith(tuple(f"layers.{layer}." for layer in range(7)))
                parameter.requires_grad_(number in (0, 3) or not is_early)
        optimizer.zero_grad()
        other.zero_grad()
        train_step(model, batch["x"], batch["y"])
        for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4), strict=True):
            (square_loss(alone(x), {"y": y}) / 4).backward()
        optimizer.step()
        other.step()
        assert differences(model, alone) == {}, number


class Counted(Layer):
    """A layer that draws, and counts how often it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.runs = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.runs += type(hidden) is Tensor  # and no placeholder
        return hidden + self.dropout(super().forward(hidden))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Six layers on two partitions, called in one of SMP's ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Counted() for _ in range(6)))
        self.head = nn.Linear(WIDTH, 1)
        self.way = way
        for module in (*self.layers[3:], self.head):
            smp.set_partition(module, 1)

    def forward(self, x: Tensor) -> Tensor:
        checkpoints = smp.patches.checkpoint
        if self.way == "by function":
            for layer in self.layers:
                x = checkpoints.checkpoint(layer, hidden=x)
        elif self.way == "by function, together":
            x = checkpoints.checkpoint_sequential(self.layers, x, strategy="group_4")
        else:
            x = self.layers(x)
        return self.head(x)  # type: ignore[no-any-return]


def recomputed() -> None:
    """Dropout draws the same again; what lies on another partition is not computed here."""
    expected: dict[str, Tensor] = {}
    for way in (
        "none",
        "layer by layer",
        "each",
        "contiguous",
        "group_4",
        "by function",
        "by function, together",
    ):
        with job(auto_partition=False, default_partition=0):
            model = smp.DistributedModel(made(lambda way=way: Stack(way)))
            layers = model.get_module().layers
            if way == "layer by layer":
                for layer in (*layers, *layers):  # the second time changes nothing
                    smp.set_activation_checkpointing(layer)
            elif way in ("each", "contiguous", "group_4"):
                smp.set_activation_checkpointing(layers, strategy=way)
            optimizer = smp.DistributedOptimizer(adam(model))
            train(model, optimizer)
            for layer in layers:
                layer.runs = 0
            train(model, optimizer)
            own = layers[:3] if smp.pp_rank() == 0 else layers[3:]
            assert {layer.runs for layer in own} == {len(STEPS) * 4 * (1 if way == "none" else 2)}, way
            found = model.state_dict()
            expected = expected or found
            assert all(torch.equal(value, expected[name]) for name, value in found.items()), way


def variants_equal_one_process() -> None:
    alone = made(Chain)
    train_alone(alone, STEPS, 4, square_loss, lambda model, part: model(part["x"]))

    pipe = smdp_pipeline()
    for configuration in (
        {"active_microbatches": 2},
        {"pipeline": "simple", "optimize": "speed"},
        {"schedule": "interleaved_1f1b", "virtual_stages": 2},
        {"skip_tracing": True, "placement_strategy": "spread"},
    ):
        with job(**configuration):
            model = trained()
            assert differences(model, alone) == {}
            if "active_microbatches" in configuration:
                theirs, ours = dict(pipe.named_parameters()), dict(model.named_parameters())
                assert theirs.keys() & ours.keys()
                assert all(torch.equal(ours[name], theirs[name]) for name in theirs.keys() & ours.keys())
                assert most_in_flight(model) == 2
    with job():
        batches_of_any_kind()
    with job():
        several_optimizers()
    with job():
        gradual_thawing()
    recomputed()
    with job():  # never whole anywhere
        torch.manual_seed(0)
        with smp.delay_param_initialization():
            late = Chain()
        assert all(parameter.is_meta for parameter in late.parameters())
        with refused("smp.model_creation(dtype=...)"):
            smp.DistributedModel(late).half()
        smp.state.model = None
        assert differences(trained(lambda: late), alone) == {}
    with job():
        with smp.model_creation(dtype=torch.float64):
            assert Chain().head.weight.dtype == torch.float64
        assert Chain().head.weight.dtype == torch.float32
        model = trained(average_grads_across_microbatches=False)
        sums = {name: parameter.grad for name, parameter in model.named_parameters()}
    with job():
        model = trained()
        ours = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert any(not torch.equal(sums[name], each) for name, each in ours.items() if name in sums)
    with job(), torch.autocast("cpu", enabled=False):
        model = smp.DistributedModel(made(Chain))
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-2))
        scaler = smp.amp.GradScaler(init_scale=1024.0)

        @smp.step
        def scaled_step(batch: dict[str, Tensor], spoiled: float) -> Tensor:
            loss = square_loss(model(batch["x"]), batch) * spoiled
            model.backward(scaler.scale(loss))
            return loss

        for spoiled, scale in ((1.0, 1024.0), (float("inf"), 512.0)):
            before = {name: parameter.clone() for name, parameter in model.named_parameters()}
            optimizer.zero_grad()
            scaled_step(STEPS[0], spoiled)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == scale
            kept = [
                torch.equal(before[name], each) for name, each in model.named_parameters() if name in before
            ]
            assert all(kept) == (spoiled != 1.0)


def smdp_pipeline() -> Any:
    pipe = smdp.torch.pipeline(
        made(Chain), 2, 4, schedule="smp_interleaved", active_microbatches=2, example_inputs=STEPS[0]
    )
    optimizer = adam(pipe)
    for batch in STEPS:
        optimizer.zero_grad()
        pipe.train_step(batch, square_loss)
        optimizer.step()
    return pipe


def most_in_flight(model: Any) -> int:
    """Count microbatches of the first stage that have gone forward and not yet backward."""
    most = current = 0
    for timed in model.pipe.timeline:
        if re.fullmatch(r"0[FB]\d+", timed.text):
            current += 1 if "F" in timed.text else -1
            most = max(most, current)
    told = [most]
    dist.broadcast_object_list(told, src=0)
    return told[0]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_variants_equal_one_process(ranks: int) -> None:
    run(variants_equal_one_process, ranks)


def one_partition() -> None:
    steps = rows(2, 8)
    alone = made(Chain)
    train_alone(alone, steps, 2, square_loss, lambda model, part: model(part["x"]))
    with job(partitions=1, microbatches=2, ddp=True):
        model = smp.DistributedModel(made(Chain))
        assert model.partitioned and model.get_module_partition("head") == 0
        optimizer = smp.DistributedOptimizer(adam(model))
        for batch in steps:
            mine = {name: item.chunk(2)[smp.dp_rank()] for name, item in batch.items()}
            optimizer.zero_grad()
            loss = train_step(model, mine["x"], mine["y"])
            optimizer.step()
            assert loss.concat().shape == (2,)
        assert all(far < 1e-6 for far in differences(model, alone).values())
        # Decorator and model.backward are optional.
        optimizer.zero_grad()
        square_loss(model(mine["x"]), mine).backward()
        mean = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        train_step(model, mine["x"], mine["y"])
        for parameter, expected in zip(model.parameters(), mean, strict=True):
            assert torch.allclose(parameter.grad, expected, atol=1e-6)
        with model.join():
            pass
        kept = list(model.parameters())
        model.cpu()
        assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))
        smp.state.model = None
        # Evaluation with gradients on is no pass of backward.
        model = smp.DistributedModel(made(Chain), backward_passes_per_step=2)
        smp.step(lambda x: model(x))(mine["x"])
        for is_same in (False, True):
            train_step(model, mine["x"], mine["y"])
            first, second = smp.allgather(model.head.weight.grad, smp.WORLD)
            assert torch.equal(first, second) == is_same
        whole = model.state_dict()
        assert model.load_state_dict({**whole, "_smp_is_partial": False}).missing_keys == []


def test_one_partition() -> None:
    run(one_partition, 2)


def one_partition_built_without_memory() -> None:
    batch = rows(1, 8)[0]
    alone = made(Chain)
    train_alone(alone, [batch, batch], 4, square_loss, lambda model, part: model(part["x"]))
    for order in ("optimizer first", "plain optimizer first", "model first"):
        with job(partitions=1, ddp=True):
            torch.manual_seed(0)
            with smp.model_creation(tensor_parallelism=False, dtype=torch.float32):
                chain = Chain()
            assert all(parameter.is_meta for parameter in chain.parameters())
            optimizer: Any = None if order == "model first" else adam(chain)
            if order == "optimizer first":
                optimizer = smp.DistributedOptimizer(optimizer)
            model = smp.DistributedModel(chain)
            if order != "optimizer first":
                optimizer = smp.DistributedOptimizer(optimizer or adam(model))
            for _ in range(2):
                optimizer.zero_grad()
                train_step(model, batch["x"], batch["y"])
                optimizer.step()
            assert differences(model, alone) == {}, order
            # What scripts ask of a model that may be tensor-parallel.
            assert list(model.default_reducer_named_parameters()) == list(model.local_named_parameters())
            assert not list(model.distributed_modules()) + list(model.scaled_batch_reducer_named_parameters())
            assert not model.is_distributed_parameter(model.head.weight) and not optimizer.overflow


def test_one_partition_built_without_memory() -> None:
    run(one_partition_built_without_memory, 2)


def wrong_use() -> None:
    batch = STEPS[0]
    with refused("smp.init() has not been called"):
        smp.DistributedModel(made(Chain))
    with job():
        model = smp.DistributedModel(made(Chain))
        optimizer = smp.DistributedOptimizer(adam(model))
        with refused("the state dict lacks 'layers.0.linear.weight'"):
            model.load_state_dict({})
        with refused("which the model does not have (the most similar name is 'head.bias')"):
            model.load_state_dict({**model.state_dict(), "head.bia": torch.ones(1)})
        ones = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
        assert model.load_state_dict(ones).missing_keys == []
        assert all(torch.equal(value, ones[name]) for name, value in model.state_dict().items())
        with refused("groups of [1] parameters, but the optimizer has groups of [18]"):
            optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
        # Parts that lack something together are refused on both ranks, and nobody waits.
        some = {name: value for name, value in ones.items() if name.startswith("layers.0.")}
        model.load_state_dict({"_smp_is_partial": True, **(some if smp.rank() == 0 else {})})
        with refused("between load_state_dict() and the first step"):
            model.state_dict()
        with refused("of this rank, or the state dict of the whole model"):
            train(model, optimizer)
    with job():
        with refused("no smp.DistributedModel"):
            train_step(None, batch["x"], batch["y"])
        with refused("trace_device = 'tpu'"):
            smp.DistributedModel(made(Chain), trace_device="tpu")
        with refused("trace_execution_times"):
            smp.DistributedModel(made(Chain), trace_device="cpu", trace_execution_times=True)
        with refused("backward_passes_per_step = 0"):
            smp.DistributedModel(made(Chain), backward_passes_per_step=0)
        with refused("smp.DistributedModel() got int"):
            smp.DistributedModel(3)  # type: ignore[arg-type]
        with refused("pass the model itself to smp.DistributedModel(): model._orig_mod; smp.Dist"):
            smp.DistributedModel(torch.compile(made(Chain)))  # type: ignore[arg-type]
        model = smp.DistributedModel(made(Chain))
        with refused("only one is possible"):
            smp.DistributedModel(made(Chain))
        with refused("outside of a step"):
            model(batch["x"])
        with refused("outside of a step"):
            model.backward(torch.zeros((), requires_grad=True))
        with refused("local_state_dict() is called before the first step"):
            model.local_state_dict()
        with refused("x of train_step has size 6 along axis 0, which is not divisible by microbatches = 4"):
            train_step(model, batch["x"][:6], batch["y"])
        with refused("the name 'z', which is not a parameter of"):
            smp.step(non_split_inputs=["z"])(lambda x: x)
        with refused("input_split_axes['x'] = 'first'"):
            smp.step(input_split_axes={"x": "first"})(lambda x: x)  # type: ignore[dict-item]
        with refused("got int"):
            smp.step(3)  # type: ignore[call-overload]
        with refused("does not call the model"):
            smp.step(lambda x: x)(batch["x"])

        @smp.step
        def nested(x: Tensor, y: Tensor) -> Any:
            return train_step(model, x, y)

        with refused("a step is called within a step"):
            nested(batch["x"], batch["y"])
        optimizer = smp.DistributedOptimizer(adam(model))
        with refused("is already an smp.DistributedOptimizer"):
            smp.DistributedOptimizer(optimizer)
        # Without fp16 they have no effect.
        smp.DistributedOptimizer(
            adam(model), static_loss_scale=None, dynamic_loss_scale=True, dynamic_loss_args={"min_scale": 1}
        )
        with refused("FusedLAMB needs the norms of whole tensors", NotImplementedError):
            smp.optimizers.FusedLAMB([])
        with refused("got ModuleList; expected a torch.nn.Module that the model calls"):
            smp.set_activation_checkpointing(model.get_module().layers)
        with refused("got DistributedModel; expected"):
            smp.patches.checkpoint.checkpoint(model, batch["x"])
        with refused("strategy = 'group_2' and pack_args_as_tuple = False are only for an nn.Sequential"):
            smp.set_activation_checkpointing(model.get_module().head, strategy="group_2")
        with refused("strategy = 'group_0' is not valid; allowed: 'each', 'contiguous', or 'group_N'"):
            smp.patches.checkpoint.checkpoint_sequential(nn.Sequential(), None, "group_0")
        with refused("got Chain; expected an nn.Sequential"):
            smp.patches.checkpoint.checkpoint_sequential(Chain(), None)  # type: ignore[arg-type]
        with refused("has no name 'stepp'", AttributeError):
            _ = smp.stepp

        train(model, optimizer)
        with refused("with partitions = 2, the core averages the gradients of each stage"):
            model.register_comm_hook(None, None)
        with refused("it has no module 'nothing'"):
            model.get_module_partition("nothing")
        with refused("load the checkpoint before the first step"):
            model.fix_partition({"layers.0": 1})
        with refused("lacks"):
            model.load_state_dict({})

        @smp.step
        def branches(x: Tensor) -> Any:
            return model(x) if len(seen.append(0) or seen) % 2 else [model(x)]  # type: ignore[func-returns-value]

        seen: list[int] = []
        with refused("different structures"):
            branches(batch["x"])

        @smp.step
        def sometimes(x: Tensor, y: Tensor) -> Any:
            loss = square_loss(model(x), {"y": y})
            if is_training:
                model.backward(loss)

        is_training = True
        sometimes(batch["x"], batch["y"])
        is_training = False
        with refused("does not call backward(), but did in its first microbatch", (RuntimeError, SmdpError)):
            sometimes(batch["x"], batch["y"])


class Rotated(nn.Module):
    """Computes with a buffer between its layers, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(WIDTH) * 0.1, persistent=False)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.cos(self.angles)
        for layer in self.layers:
            x = layer(x * turned)
        return self.head(x)  # type: ignore[no-any-return]


def built_without_memory() -> None:
    alone = made(Rotated)
    train_alone(alone, STEPS, 4, square_loss, lambda model, part: model(part["x"]))
    with job():
        torch.manual_seed(0)
        with smp.model_creation():
            rotated = Rotated()
        model = smp.DistributedModel(rotated)
        train(model, smp.DistributedOptimizer(adam(model)))
        assert differences(model, alone) == {}


def test_built_without_memory() -> None:
    run(built_without_memory, 2)


def messages_name_what_the_script_calls() -> None:
    batch = STEPS[0]
    with job():
        model = smp.DistributedModel(made(Chain))

        @smp.step
        def plain_backward(x: Tensor) -> None:
            model(x).mean().backward()

        with refused("The schedule runs the backward of the loss passed to model.backward(loss)"):
            plain_backward(batch["x"])
    with job(skip_tracing=True):
        model = smp.DistributedModel(made(Reversed))
        text = "but values can flow only to later stages. Remove the key skip_tracing, so that"
        with refused(text), torch.no_grad():
            smp.step(lambda x: model(x))(batch["x"])


class Reversed(nn.Module):
    """Registers its layers in another order than they run in."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))  # type: ignore[no-any-return]


def test_messages_name_what_the_script_calls() -> None:
    run(messages_name_what_the_script_calls, 2)


def test_wrong_use() -> None:
    run(wrong_use, 2)
