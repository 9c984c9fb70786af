"""Replaces marked modules of a model by their substitutes, in place."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from smdp.torch.initialization.delayed_initialization import delayed_initialization
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.tensor_parallelism.marks import mark_of, mark_replaced
from smdp.torch.model_parallel.tensor_parallelism.registry import Substitution, substitution_of
from smdp.torch.tensor_parallelism.same_values import take_same_values

_log = logging.getLogger("smdp.torch.model_parallel")


def replace_marked(model: nn.Module) -> nn.Module:
    """Replaces the outermost marked modules that are supported. All ranks of the job call it together.

    Modules whose weights others share, or whose sizes are not divisible, stay; the log names them once.

    Returns:
        The model, or its substitute.

    Raises:
        ValueError: The ranks of a tensor-parallel group would replace different modules.
    """
    chosen, skipped = _chosen(model)
    axis = state.running.axis
    own = [(name, type(module).__name__) for name, (module, _) in chosen.items()]
    told = on_every_rank(lambda: own) if axis.size > 1 else [own]
    if any(each != told[0] for each in told):
        raise ValueError(
            f"[smdp] tensor parallelism would replace different modules on the ranks: {told[0]} on rank 0;"
            " build the same model on all ranks"
        )
    if skipped and state.running.mesh.rank == 0:
        lines = ", ".join(f"{name or 'the model'} ({reason})" for name, reason in skipped.items())
        _log.warning("[smdp] tensor parallelism leaves these modules as they are: %s", lines)
    if chosen and axis.is_across_hosts and state.running.mesh.rank == 0:
        _log.warning(
            "[smdp] the %d ranks of a tensor-parallel group are on several hosts, and exchange activations"
            " in every layer%s. Use a degree that divides the ranks of a host.",
            axis.size,
            '; with optimize = "memory", twice as much as with "speed"'
            if state.cfg.optimize == "memory"
            else "",
        )
    if chosen and axis.size > 1:
        take_same_values(nn.ModuleList(module for module, found in chosen.values() if found.copies), axis)
    made: dict[int, nn.Module] = {}
    for name, (module, found) in chosen.items():
        before = list(module.parameters())
        made[id(module)] = _substitute(module, found)
        mark_replaced(before, made[id(module)])
        _register_translation(name, found)
    if id(model) in made:
        return made[id(model)]
    for parent in model.modules():
        for key, child in parent._modules.items():
            if child is not None and id(child) in made:
                parent._modules[key] = made[id(child)]
    return model


def _substitute(module: nn.Module, found: Substitution) -> Any:
    mark = mark_of(module)
    is_delayed = any(parameter.is_meta for parameter in module.parameters())
    with same_random_numbers(state.running.axis):
        if is_delayed and not found.copies:
            with delayed_initialization():
                made: Any = found.make(module, mark.options)
        else:
            made = found.make(module, mark.options)
    made.train(module.training)
    for name, value in vars(module).items():
        # The partition by hand, and similar marks.
        if name.startswith("_smp_") and name not in vars(made):
            object.__setattr__(made, name, value)
    call = found.call
    if call is None and (found.forward_hook or found.return_hook):
        call = functools.partial(_call_with_hooks, found)
    if call is not None:
        made._smp_call = call
        made.__class__ = _called_like_before(made.__class__)
    return made


@functools.cache
def _called_like_before(kind: Any) -> Any:
    """Returns a class whose forward takes the arguments of the replaced module and returns its results."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._smp_call(self, functools.partial(kind.forward, self), args, kwargs)

    made = type(kind.__name__, (kind,), {"forward": forward})
    made.__module__ = kind.__module__
    return made


def _call_with_hooks(found: Substitution, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
    if found.forward_hook is not None:
        args, kwargs = found.forward_hook(*args, **kwargs)
    result = forward(*args, **kwargs)
    return result if found.return_hook is None else found.return_hook(result)


def _chosen(model: nn.Module) -> tuple[dict[str, tuple[nn.Module, Substitution]], dict[str, str]]:
    """Returns the modules to replace, and the reasons why others are not, by name."""
    chosen: dict[str, tuple[nn.Module, Substitution]] = {}
    skipped: dict[str, str] = {}
    holders: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(module)

    def walk(name: str, module: nn.Module, seen: set[int]) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        found = substitution_of(module) if mark_of(module).is_enabled else None
        if found is not None:
            reason = _reason(module, found, holders)
            if reason is None:
                chosen[name] = module, found
                return
            skipped[name] = reason
        for key, child in module.named_children():
            walk(f"{name}.{key}" if name else key, child, seen)

    walk("", model, set())
    return chosen, skipped


def _reason(module: nn.Module, found: Substitution, holders: Mapping[int, list[nn.Module]]) -> str | None:
    """Returns why a module cannot be replaced, or None."""
    size = state.running.axis.size
    problem = found.problem(module)
    if problem is not None:
        return problem
    for name, width in found.widths(module).items():
        if width % size != 0:
            return f"{name} = {width} is not divisible by tensor_parallel_degree = {size}"
    inside = {id(each) for each in module.modules()}
    for name, parameter in module.named_parameters():
        if any(id(holder) not in inside for holder in holders[id(parameter)]):
            return f"another module shares its {name}"
    if getattr(module, "max_norm", None) is not None and size > 1:
        return "max_norm needs whole rows"
    return None


def _register_translation(name: str, found: Substitution) -> None:
    if found.translate is not None:
        to_plain, from_plain = found.translate
        pair = functools.partial(_under, name, to_plain), functools.partial(_under, name, from_plain)
        state.module_manager.translate_functions.append(pair)


def _under(
    name: str, translate: Any, state_dict: Mapping[str, Any], max_seq_len: int | None = None
) -> dict[str, Any]:
    """Translates the entries of a module within a state dict of the whole model."""
    prefix = f"{name}." if name else ""
    inner = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    rest = {key: value for key, value in state_dict.items() if not key.startswith(prefix)}
    options = {} if max_seq_len is None else {"max_seq_len": max_seq_len}
    return rest | {prefix + key: value for key, value in translate(inner, **options).items()}
