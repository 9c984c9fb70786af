"""Measures the units of a model one at a time, while the model's own forward calls them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.partition import Unit
from smdp.torch.pipelining.analysis.glue_activations import GlueActivations
from smdp.torch.pipelining.analysis.glue_costs import GlueCosts
from smdp.torch.pipelining.analysis.kinds import kind_of_function, kind_of_unit
from smdp.torch.pipelining.analysis.random_inputs import measure_on_random_numbers
from smdp.torch.pipelining.analysis.replaced_forward import (
    computed_weights,
    replaced_forward,
    without_graphs,
)
from smdp.torch.pipelining.analysis.sampled_trace import SampledTrace
from smdp.torch.pipelining.analysis.samples import Samples
from smdp.torch.pipelining.analysis.unit_costs import UnitCost, measure, storages_of
from smdp.torch.pipelining.analysis.unit_traces import called, parameter_bytes, trace_of_units
from smdp.torch.pipelining.analysis.value_flow import ValueFlow
from smdp.torch.pipelining.tensors.functions import name_of, quietly
from smdp.torch.pipelining.units.kept_buffers import kept_buffers
from smdp.torch.pipelining.units.side_effects import without_side_effects
from smdp.torch.pipelining.units.units import glue_parameters
from smdp.torch.recompute.activation_checkpoints import outside_checkpoints, rule_of_units
from smdp.torch.recompute.rules import following


@dataclass(frozen=True, slots=True)
class _Call:
    unit: str
    kind: str
    activation_bytes: int
    joined_bytes: int


class Tracer:
    """Runs one forward of a model, and measures each call of a unit and the model's own code after it.

    Args:
        model: The model, with real or meta tensors.
        units: Names of its units.
        repeats: Number of measured runs for each kind of call.
    """

    def __init__(self, model: nn.Module, units: Sequence[str], repeats: int) -> None:
        self._model = model
        self._units = tuple(units)
        self._modules = {name: model.get_submodule(name) for name in units}
        self._repeats = repeats
        self._flow = ValueFlow()
        self._calls: list[_Call] = []
        self._returned: list[Tensor] = []  # by the last call
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
        """Replaces the units' forwards by measuring ones; restores everything when the context ends."""
        model = self._model
        training = {module: module.training for module in model.modules()}
        with ExitStack() as stack:
            stack.enter_context(without_side_effects(model))
            stack.enter_context(kept_buffers(model))
            devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
            stack.enter_context(torch.random.fork_rng(devices=list(devices)))
            for name, module in self._modules.items():
                stack.enter_context(replaced_forward(module, self._traced(name, module)))
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
        """Runs the forward, which calls the units."""
        model, tensors = self._model, dict[str, Tensor]()
        if self._fake_mode is not None:
            tensors = {name: self._fake(value) for name, value in model.named_parameters()}
            tensors |= {name: self._fake(value) for name, value in model.named_buffers() if value.is_meta}
            args, kwargs = tree_map(lambda leaf: self._fake(leaf) if _is_meta(leaf) else leaf, (args, kwargs))
        values = [*model.parameters(), *model.buffers(), *tensors.values()]
        self._resident |= storages_of(values)
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
                f"[smdp] {type(model).__name__} cannot be traced on fake tensors, because its own code"
                f" between units needs values ({str(error).splitlines()[0]}); split it without tracing, by"
                " its parameters"
            ) from error
        finally:
            self._flow.end(glue)
            self._returned.clear()

    def sampled(self, microbatch_size: int) -> SampledTrace:
        """Returns the trace with all measurements."""
        made: list[Unit] = []
        kinds: list[tuple[str, ...]] = []
        joined: list[int] = []
        modules: dict[str, nn.Module] = {}
        counts: Counter[str] = Counter()
        for place, call in enumerate(self._calls):
            counts[call.unit] += 1
            name = called(call.unit, counts[call.unit])
            modules[name] = self._modules[call.unit]
            kinds.append((call.kind, *self._glue_costs.after(place)))
            joined.append(call.joined_bytes)
            made.append(
                Unit(
                    name=name,
                    parameter_bytes=parameter_bytes(modules[name]),
                    activation_bytes=call.activation_bytes + self._glue.bytes_after(place),
                    cut_bytes=self._flow.cut_bytes(place),
                )
            )
        for before, name in zip((None, *self._units), self._units, strict=False):
            if counts[name] == 0:
                names = [unit.name for unit in made]
                place = names.index(called(before)) + 1 if before is not None else 0
                cut = made[place - 1].cut_bytes if place > 0 else 0
                modules[called(name)] = self._modules[name]
                unit = Unit(
                    name=called(name),
                    parameter_bytes=parameter_bytes(modules[called(name)]),
                    cut_bytes=cut,
                )
                made.insert(place, unit)
                kinds.insert(place, ())
                joined.insert(place, 0)
        shape = trace_of_units(self._model, modules, made, microbatch_size)
        return SampledTrace(shape, tuple(kinds), self._samples, tuple(joined))

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
                # Popped rather than only paused, because an active mode slows down each operation.
                rule = rule_of_units()
                run = forward if rule is None else following(rule, name, forward)
                with torch.no_grad(), _pop_mode_temporarily(), outside_checkpoints():
                    with _disable_current_modes(), without_graphs(module):
                        kind = kind_of_unit(module, args, kwargs, is_marked, rule is not None)
                        cost = self._measure(name, module, run, args, kwargs, is_marked, kind)
                    output = forward(*args, **kwargs) if self._fake_mode is None else cost.output
            finally:
                self._is_measuring = self._glue.is_paused = self._glue_costs.is_paused = False
            last = {id(each) for each in self._returned}
            joined = storages_of(each for each in _tensors((args, kwargs)) if id(each) in last)
            self._calls.append(_Call(name, kind, cost.activation_bytes, _bytes_of(joined)))
            output = tree_map(lambda leaf: self._given(leaf, cost), output)
            self._returned = _tensors(output)
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
        """Number of measured runs for each kind of call; 0 for fake tensors, which take no time."""
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
                    parameters=[*module.parameters(), *computed_weights(module).values()],
                    resident=self._resident,
                    samples=samples,
                    repeats=self._runs_of_a_kind,
                )
        except (RuntimeError, NotImplementedError) as error:
            if not is_fake:
                raise
            cost = measure_on_random_numbers(name, module, args, kwargs, has_gradient, samples, error)
            return replace(cost, output=tree_map(self._fake_if_tensor, cost.output))

    def _fake_if_tensor(self, leaf: Any) -> Any:
        return self._fake(leaf) if isinstance(leaf, Tensor) else leaf

    def _fake(self, tensor: Tensor) -> Tensor:
        assert self._fake_mode is not None
        device = "cpu" if tensor.is_meta else tensor.device
        with _disable_current_modes(), self._fake_mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return fake.requires_grad_(tensor.requires_grad)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes_of(storages: dict[int, torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages.values())


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta
