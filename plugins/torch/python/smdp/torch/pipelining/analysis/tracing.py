"""A model's trace for the partitioner: its units in execution order, with times and bytes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.partition import Tied, Trace, Unit
from smdp.partition.trace import ELEMENT_BYTES
from smdp.torch.pipelining.analysis.clocks import BYTES_PER_SECOND
from smdp.torch.pipelining.analysis.glue_activations import GlueActivations
from smdp.torch.pipelining.analysis.glue_costs import GlueCosts
from smdp.torch.pipelining.analysis.kinds import kind_of_function, kind_of_unit
from smdp.torch.pipelining.analysis.sampled_trace import SampledTrace
from smdp.torch.pipelining.analysis.samples import Samples
from smdp.torch.pipelining.analysis.unit_costs import UnitCost, measure
from smdp.torch.pipelining.analysis.value_flow import ValueFlow
from smdp.torch.pipelining.tensors.functions import name_of, quietly
from smdp.torch.pipelining.units.kept_buffers import kept_buffers
from smdp.torch.pipelining.units.side_effects import without_side_effects
from smdp.torch.pipelining.units.units import glue_parameters
from smdp.torch.recompute.activation_checkpoints import (
    checkpointed,
    is_checkpointed,
    outside_checkpoints,
)


@dataclass(frozen=True, slots=True)
class _Call:
    unit: str
    kind: str
    activation_bytes: int


def trace(
    model: nn.Module,
    units: Sequence[str],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[[Any], Any] | None = None,
    repeats: int = 4,
) -> SampledTrace:
    """Runs one microbatch through a model's own forward and measures each unit's calls, one at a time.

    A real model's times are measured, on the inputs that a call got, so that no more than one unit's
    activations live. Calls of the same class and shapes have one time, the least of all their runs. There is
    one run of each call at least: calls lie apart, and what disturbs some does not disturb all. A model with
    meta parameters runs on fake tensors that take no memory, and times are estimated from operations and
    bytes at `clocks.FLOPS_PER_SECOND` and `BYTES_PER_SECOND`. A unit whose shapes depend on
    values, as those of experts may, cannot run so: it runs on random numbers, for which its own parameters,
    and no others, are in memory.

    The model's own operations on what units gave, and those of the loss function, are measured one by one and
    belong to the unit before them.

    Activation bytes are those of the distinct storages that autograd keeps of a call, and of the model's own
    operations from there to the next call, parameters and buffers excepted: the last unit's include those of
    a loss that the model computes. For cut bytes see ValueFlow. Further calls of a unit are units of their
    own, "name#2" and so on, tied to the first by all their parameters. A unit that is not called stands
    behind the one that is before it in `units`, without times.

    The model is left as it was: buffers, training flags, gradients; so are torch's random generators. A model
    in evaluation mode is traced in training mode.

    Args:
        model: Real or meta.
        units: As find_units() gives them.
        args: Of the model's forward: tensors with values, of one microbatch.
        kwargs: Of the model's forward.
        loss_fn: Called with the output, for its time and what it consumes; not for a model with meta
            parameters.
        repeats: Runs of a kind of call, unless it has more calls, after one of each call to warm up.

    Raises:
        SmdpError: A unit cannot run by itself, or the model's own code between units needs values that a meta
            model has not; the message names it.
        ValueError: `units` or `repeats` is wrong.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"[smdp] repeats must be an integer of 1 or more, not {repeats!r}")
    _check_units(model, units)
    tracer = _Tracer(model, units, repeats)
    with tracer.prepared(), torch.no_grad():
        tracer.run(tuple(args), dict(kwargs or {}), loss_fn)
    return tracer.sampled(_microbatch_size((args, kwargs)))


def trace_by_parameters(model: nn.Module, units: Sequence[str]) -> Trace:
    """Make a trace without running anything: a unit's passes each take as long as reading its parameters.

    Args:
        model: Real or meta.
        units: As find_units() gives them; they are taken to run in this order.
    """
    _check_units(model, units)
    made = [_unit(_called(name), model.get_submodule(name)) for name in units]
    return _trace(model, {_called(name): model.get_submodule(name) for name in units}, made, 1)


class _Tracer:
    def __init__(self, model: nn.Module, units: Sequence[str], repeats: int) -> None:
        self._model = model
        self._units = tuple(units)
        self._modules = {name: model.get_submodule(name) for name in units}
        self._repeats = repeats
        self._flow = ValueFlow()
        self._calls: list[_Call] = []
        self._is_measuring = False
        tensors = itertools.chain(model.parameters(), model.buffers())
        self._fake_mode = (
            FakeTensorMode(allow_non_fake_inputs=True) if any(t.is_meta for t in tensors) else None
        )
        self._samples: dict[str, Samples] = {}
        self._resident: dict[int, torch.UntypedStorage] = {}
        self._glue = GlueActivations(self._resident)
        self._glue_costs = GlueCosts(self._flow.stems_from_parameters, self._measure_glue)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Put what measures in place of the units' forward; leave everything as it was afterwards."""
        model = self._model
        training = {module: module.training for module in model.modules()}
        with ExitStack() as stack:
            stack.enter_context(without_side_effects(model))
            stack.enter_context(kept_buffers(model))
            devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
            stack.enter_context(torch.random.fork_rng(devices=list(devices)))
            for name, module in self._modules.items():
                stack.enter_context(_forward_of(module, self._traced(name, module)))
            try:
                if not model.training:
                    model.train()
                yield
            finally:
                for module, mode in training.items():
                    module.training = mode

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], loss_fn: Callable[[Any], Any] | None
    ) -> None:
        """Run the forward, which calls the units."""
        model, tensors = self._model, dict[str, Tensor]()
        if self._fake_mode is not None:
            tensors = {name: self._fake(value) for name, value in model.named_parameters()}
            tensors |= {name: self._fake(value) for name, value in model.named_buffers() if value.is_meta}
            args, kwargs = tree_map(lambda leaf: self._fake(leaf) if _is_meta(leaf) else leaf, (args, kwargs))
        values = [*model.parameters(), *model.buffers(), *tensors.values()]
        self._resident |= _storages(values)
        glue = [
            tensors.get(name, parameter)
            for name, parameter in model.named_parameters()
            if name in set(glue_parameters(model, self._units)) and parameter.requires_grad
        ]
        self._flow.begin(glue)
        try:
            with self._flow, self._glue, self._glue_costs, torch.enable_grad():
                if self._fake_mode is not None:
                    functional_call(model, tensors, args, kwargs)
                else:
                    output = model(*args, **kwargs)
                    if loss_fn is not None:
                        loss_fn(output)
        except RuntimeError as error:
            if self._fake_mode is None or isinstance(error, SmdpError):
                raise
            raise SmdpError(
                f"[smdp] {type(model).__name__} cannot be traced on fake tensors: its own code between units "
                f"needs values ({str(error).splitlines()[0]}); split it without tracing, by its parameters"
            ) from error
        finally:
            self._flow.end(glue)

    def sampled(self, microbatch_size: int) -> SampledTrace:
        """Returns what was found."""
        made: list[Unit] = []
        kinds: list[tuple[str, ...]] = []
        modules: dict[str, nn.Module] = {}
        counts: Counter[str] = Counter()
        for place, call in enumerate(self._calls):
            counts[call.unit] += 1
            name = _called(call.unit, counts[call.unit])
            modules[name] = self._modules[call.unit]
            kinds.append((call.kind, *self._glue_costs.after(place)))
            made.append(
                Unit(
                    name=name,
                    parameter_bytes=_parameter_bytes(modules[name]),
                    activation_bytes=call.activation_bytes + self._glue.bytes_after(place),
                    cut_bytes=self._flow.cut_bytes(place),
                )
            )
        for before, name in zip((None, *self._units), self._units, strict=False):
            if counts[name] == 0:
                names = [unit.name for unit in made]
                place = names.index(_called(before)) + 1 if before is not None else 0
                cut = made[place - 1].cut_bytes if place > 0 else 0
                modules[_called(name)] = self._modules[name]
                unit = Unit(
                    name=_called(name),
                    parameter_bytes=_parameter_bytes(modules[_called(name)]),
                    cut_bytes=cut,
                )
                made.insert(place, unit)
                kinds.insert(place, ())
        shape = _trace(self._model, modules, made, microbatch_size)
        return SampledTrace(shape, tuple(kinds), self._samples)

    def _traced(self, name: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def traced(*args: Any, **kwargs: Any) -> Any:
            if self._is_measuring:
                return forward(*args, **kwargs)
            has_gradient = {
                id(leaf)
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, Tensor) and self._flow.stems_from_parameters(leaf)
            }

            def is_marked(tensor: Tensor) -> bool:
                return id(tensor) in has_gradient

            call = len(self._calls)
            self._flow.enter(call, (args, kwargs))
            self._glue.leave_out(_tensors((args, kwargs)))
            self._glue.call = self._glue_costs.call = call
            self._is_measuring = self._glue.is_paused = self._glue_costs.is_paused = True
            try:
                # Paused, and not even there, for it would take time of each operation.
                is_recomputed = is_checkpointed()
                run = checkpointed(forward) if is_recomputed else forward
                with torch.no_grad(), _pop_mode_temporarily(), outside_checkpoints():
                    with _disable_current_modes(), _without_graphs(module):
                        kind = kind_of_unit(module, args, kwargs, is_marked, is_recomputed)
                        cost = self._measure(name, module, run, args, kwargs, is_marked, kind)
                    output = forward(*args, **kwargs) if self._fake_mode is None else cost.output
            finally:
                self._is_measuring = self._glue.is_paused = self._glue_costs.is_paused = False
            self._calls.append(_Call(name, kind, cost.activation_bytes))
            output = tree_map(lambda leaf: self._given(leaf, cost), output)
            self._flow.leave(call, output)
            return output

        return traced

    def _given(self, leaf: Any, cost: UnitCost) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        is_new = not self._flow.stems_from_parameters(leaf)
        if is_new and cost.activation_bytes and (leaf.is_floating_point() or leaf.is_complex()):
            leaf = self._glue.with_gradient(leaf)
        self._glue.leave_out([leaf])
        return leaf

    @property
    def _runs_of_a_kind(self) -> int:
        """Runs for the clock; fake tensors take no time."""
        return 0 if self._fake_mode is not None else self._repeats

    def _measure_glue(self, run: Callable[..., Any], args: Any, kwargs: Any) -> str:
        kind = kind_of_function(name_of(run), args, kwargs, self._flow.stems_from_parameters)
        self._glue.is_paused = True
        try:
            with quietly(), _disable_current_modes(), outside_checkpoints():
                measure(
                    run,
                    args,
                    kwargs,
                    has_gradient=self._flow.stems_from_parameters,
                    parameters=(),
                    resident={},
                    samples=self._samples.setdefault(kind, Samples()),
                    repeats=self._runs_of_a_kind,
                )
        finally:
            self._glue.is_paused = False
        return kind

    def _measure(
        self,
        name: str,
        module: nn.Module,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_gradient: Callable[[Tensor], bool],
        kind: str,
    ) -> UnitCost:
        is_fake = self._fake_mode is not None
        samples = self._samples.setdefault(kind, Samples())
        try:
            with quietly() if is_fake else nullcontext():
                return measure(
                    run,
                    args,
                    kwargs,
                    has_gradient=has_gradient,
                    parameters=[*module.parameters(), *_attributes(module).values()],
                    resident=self._resident,
                    samples=samples,
                    repeats=self._runs_of_a_kind,
                )
        except (RuntimeError, NotImplementedError) as error:
            if not is_fake:
                raise
            return self._measure_on_random_numbers(name, module, args, kwargs, has_gradient, samples, error)

    def _measure_on_random_numbers(
        self,
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_gradient: Callable[[Tensor], bool],
        samples: Samples,
        error: Exception,
    ) -> UnitCost:
        tensors = {key: _random(value) for key, value in module.named_parameters()}
        tensors |= {key: _random(value) for key, value in module.named_buffers()}
        real = {id(leaf): _random(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        marked = {
            id(real[id(leaf)])
            for leaf in tree_leaves((args, kwargs))
            if id(leaf) in real and has_gradient(leaf)
        }
        args, kwargs = tree_map(lambda leaf: real.get(id(leaf), leaf), (args, kwargs))
        try:
            cost = measure(
                lambda *inputs, **options: functional_call(module, tensors, inputs, options),
                args,
                kwargs,
                has_gradient=lambda tensor: id(tensor) in marked,
                parameters=[value for value in tensors.values() if value.requires_grad],
                resident=_storages(tensors.values()),
                samples=samples,
                repeats=0,
            )
        except (RuntimeError, NotImplementedError, IndexError, ValueError) as failure:
            raise SmdpError(
                f"[smdp] {name} cannot be traced: on fake tensors {str(error).splitlines()[0]}; on random "
                f"numbers {failure}; split it without tracing, by its parameters"
            ) from failure
        output = tree_map(lambda leaf: self._fake(leaf) if isinstance(leaf, Tensor) else leaf, cost.output)
        return replace(cost, output=output)

    def _fake(self, tensor: Tensor) -> Tensor:
        assert self._fake_mode is not None
        device = "cpu" if tensor.is_meta else tensor.device
        with _disable_current_modes(), self._fake_mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return fake.requires_grad_(tensor.requires_grad)


@contextmanager
def _forward_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _attributes(module: nn.Module) -> dict[str, Tensor]:
    """Give the tensors with gradients that hooks of a module have set, as torch's older weight_norm does."""
    found = {name: item for name, item in vars(module).items() if isinstance(item, Tensor)}
    return {name: tensor for name, tensor in found.items() if tensor.requires_grad}


@contextmanager
def _without_graphs(module: nn.Module) -> Iterator[None]:
    """Let such tensors be leaves: what leads to them is not the module's own work."""
    made = _attributes(module)
    vars(module).update({name: tensor.detach().requires_grad_() for name, tensor in made.items()})
    try:
        yield
    finally:
        vars(module).update(made)


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _random(tensor: Tensor) -> Tensor:
    """Give a tensor of the same form with small numbers, a fake one's indices all 0; a real one as it is."""
    if not (tensor.is_meta or isinstance(tensor, FakeTensor)):
        return tensor
    device = "cpu" if tensor.is_meta else tensor.device
    real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.is_floating_point() or tensor.is_complex():
        real.normal_(0, 0.02)
    else:
        real.zero_()
    return real.requires_grad_(tensor.requires_grad)


def _called(unit: str, count: int = 1) -> str:
    """Name a unit's call; the model itself is "model"."""
    return (unit or "model") + (f"#{count}" if count > 1 else "")


def _parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _unit(name: str, module: nn.Module) -> Unit:
    nbytes = _parameter_bytes(module)
    seconds = nbytes / BYTES_PER_SECOND
    return Unit(
        name=name, forward=seconds, backward_input=seconds, backward_weight=seconds, parameter_bytes=nbytes
    )


def _trace(
    model: nn.Module, modules: Mapping[str, nn.Module], made: Sequence[Unit], microbatch_size: int
) -> Trace:
    users: dict[nn.Parameter, list[str]] = {}
    for unit in made:
        for parameter in modules[unit.name].parameters():
            users.setdefault(parameter, []).append(unit.name)
    names = {parameter: name for name, parameter in model.named_parameters()}
    sizes: Counter[str] = Counter()
    for parameter in names:
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.nbytes
    dtype = max(
        (each for each in sizes if each in ELEMENT_BYTES), key=lambda each: sizes[each], default="float32"
    )
    return Trace(
        units=tuple(made),
        tied=tuple(
            Tied(name=names[parameter], bytes=parameter.nbytes, units=tuple(using))
            for parameter, using in users.items()
            if len(using) > 1
        ),
        name=type(model).__name__,
        microbatch_size=microbatch_size,
        parameter_dtype=dtype,
    )


def _microbatch_size(inputs: Any) -> int:
    """Give the first dimension of the first tensor that has one."""
    sizes = (leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim() > 0)
    return max(next(sizes, 1), 1)


def _check_units(model: nn.Module, units: Sequence[str]) -> None:
    known = {name for name, _ in model.named_modules()}
    unknown = [name for name in units if name not in known]
    if not units or unknown or len(set(units)) < len(units):
        raise ValueError(
            f"[smdp] units of {type(model).__name__} must be one or more names of modules, each once; "
            f"got {tuple(units)}" + (f", without a module {unknown[0]}" if unknown else "")
        )
