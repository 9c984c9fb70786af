"""The parts of a trace that need no measurement: names, bytes and tied weights of units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import nn

from smdp.partition import Tied, Trace, Unit
from smdp.partition.trace import ELEMENT_BYTES
from smdp.torch.pipelining.analysis.clocks import BYTES_PER_SECOND


def trace_by_parameters(model: nn.Module, units: Sequence[str]) -> Trace:
    """Returns a trace without running the model; each pass of a unit takes as long as reading its parameters.

    Args:
        model: The model, with real or meta tensors.
        units: Names of units, as returned by find_units(), in the order in which they are assumed to run.
    """
    check_units(model, units)
    made = [_unit(called(name), model.get_submodule(name)) for name in units]
    return trace_of_units(model, {called(name): model.get_submodule(name) for name in units}, made, 1)


def trace_of_units(
    model: nn.Module, modules: Mapping[str, nn.Module], made: Sequence[Unit], microbatch_size: int
) -> Trace:
    """Returns the trace of units, which are given in execution order, each with its module."""
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


def called(unit: str, count: int = 1) -> str:
    """Returns the name of a unit's call; the model itself is "model"."""
    return (unit or "model") + (f"#{count}" if count > 1 else "")


def parameter_bytes(module: nn.Module) -> int:
    """Returns the bytes of a module's parameters."""
    return sum(parameter.nbytes for parameter in module.parameters())


def check_units(model: nn.Module, units: Sequence[str]) -> None:
    """Checks that units are distinct modules of a model.

    Raises:
        ValueError: There are none, or one is unknown or listed twice.
    """
    known = {name for name, _ in model.named_modules()}
    unknown = [name for name in units if name not in known]
    if not units or unknown or len(set(units)) < len(units):
        raise ValueError(
            f"[smdp] units of {type(model).__name__} must be one or more distinct names of modules; "
            f"got {tuple(units)}" + (f", but there is no module {unknown[0]}" if unknown else "")
        )


def _unit(name: str, module: nn.Module) -> Unit:
    nbytes = parameter_bytes(module)
    seconds = nbytes / BYTES_PER_SECOND
    return Unit(
        name=name, forward=seconds, backward_input=seconds, backward_weight=seconds, parameter_bytes=nbytes
    )
