"""The classes of modules that tensor parallelism supports, and their substitutes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.embedding import DistributedEmbedding
from smdp.torch.model_parallel.nn.huggingface import bert, gpt2, gptj, gptneo, roberta
from smdp.torch.model_parallel.nn.huggingface.calls import substitute
from smdp.torch.model_parallel.nn.huggingface.families import Family
from smdp.torch.model_parallel.nn.linear import DistributedLinear
from smdp.torch.model_parallel.nn.lm_head import DistributedTransformerLMHead
from smdp.torch.model_parallel.nn.transformer import DistributedTransformer
from smdp.torch.model_parallel.nn.transformer_layer import DistributedTransformerLayer
from smdp.torch.model_parallel.tensor_parallelism.marks import accept_keywords

M = TypeVar("M", bound=type)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_INIT = "_smp_init_arguments"
_STACK = (DistributedTransformerLMHead, DistributedTransformer, DistributedTransformerLayer)


@dataclass(frozen=True)
class Substitution:
    """How modules of a class are replaced.

    Attributes:
        substitute: The class of the substitutes.
        make: Returns the substitute of a module, given keyword arguments that take precedence.
        forward_hook: Returns the substitute's arguments, given those of the module's forward. None: the same.
        return_hook: Returns the module's result, given that of the substitute. None: the same.
        widths: Returns the sizes of a module that must be divisible by the degree, by name.
        translate: A pair of functions that translate state dicts to and from the names of the module.
        call: Calls the substitute with the arguments of the module's forward, given the substitute, its own
            forward, and the arguments. None: the hooks do.
        problem: Returns why a module is not supported, or None.
        copies: Whether `make` takes the values of the module.
    """

    substitute: type
    make: Callable[[nn.Module, Mapping[str, Any]], nn.Module]
    forward_hook: Callable[..., Any] | None = None
    return_hook: Callable[[Any], Any] | None = None
    widths: Callable[[Any], dict[str, int]] = lambda module: {}
    translate: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    copies: bool = False
    call: Callable[..., Any] | None = None
    problem: Callable[[Any], str | None] = lambda module: None


_BUILT_IN: dict[type, Substitution] = {
    nn.Linear: Substitution(
        DistributedLinear,
        lambda module, options: DistributedLinear.of(module),
        widths=lambda module: {"in_features": module.in_features},
        copies=True,
    ),
    nn.Embedding: Substitution(
        DistributedEmbedding,
        lambda module, options: DistributedEmbedding.of(module),
        widths=lambda module: {"embedding_dim": module.embedding_dim},
        copies=True,
    ),
}
_registered: dict[type, Substitution] = {}


def tp_register(
    dist_module: type,
    init_hook: Callable[..., Arguments] | None = None,
    forward_hook: Callable[..., Arguments] | None = None,
    return_hook: Callable[[Any], Any] | None = None,
) -> Callable[[M], M]:
    """Returns a decorator that registers a class whose modules tensor parallelism replaces.

    Args:
        dist_module: The class of the substitutes, derived from `smp.nn.DistributedModule`.
        init_hook: Returns positional and keyword arguments for `dist_module`, given the arguments with which
            a module was created. None: the same. Keywords that `dist_module` does not have are left out.
        forward_hook: Returns the arguments of the substitute's forward, given those of the module's. None:
            the same.
        return_hook: Returns the module's result, given that of the substitute. None: the same.

    Raises:
        ValueError: `dist_module` is not such a class, or a hook cannot be called.
    """

    def register(module_cls: M) -> M:
        tp_register_with_module(module_cls, dist_module, init_hook, forward_hook, return_hook)
        return module_cls

    _check(dist_module, init_hook, forward_hook, return_hook)
    return register


def tp_register_with_module(
    module_cls: type,
    dist_module: type,
    init_hook: Callable[..., Arguments] | None = None,
    forward_hook: Callable[..., Arguments] | None = None,
    return_hook: Callable[[Any], Any] | None = None,
) -> None:
    """Registers a class whose modules tensor parallelism replaces. Modules created before are not replaced.

    Args:
        module_cls: The class. Only modules of exactly this class are replaced.
        dist_module: See `tp_register`.
        init_hook: See `tp_register`.
        forward_hook: See `tp_register`.
        return_hook: See `tp_register`.

    Raises:
        ValueError: See `tp_register`; or `module_cls` is not a class of modules.
    """
    _check(dist_module, init_hook, forward_hook, return_hook)
    if not (isinstance(module_cls, type) and issubclass(module_cls, nn.Module)):
        raise ValueError(
            f"[smdp] tp_register got {module_cls!r}; expected a class derived from torch.nn.Module"
        )
    _record_arguments(module_cls)
    accept_keywords(_keywords(dist_module))

    def make(module: nn.Module, options: Mapping[str, Any]) -> nn.Module:
        args, kwargs = getattr(module, _INIT)
        if init_hook is not None:
            args, kwargs = init_hook(*args, **kwargs)
        known = _keywords(dist_module)
        named = {name: value for name, value in kwargs.items() if _takes_any(dist_module) or name in known}
        # A keyword that is also a positional argument replaces it.
        bound = list(args)
        for name, value in options.items():
            if name in known and known.index(name) < len(bound):
                bound[known.index(name)] = value
            elif name in known:
                named[name] = value
        made: nn.Module = dist_module(*bound, **named)
        return made

    _registered[module_cls] = Substitution(dist_module, make, forward_hook, return_hook)


def substitution_of(module: nn.Module) -> Substitution | None:
    """Returns how a module is replaced, or None if its class is not supported."""
    kind: Any = type(module)
    if kind in _registered:
        return _registered[kind] if hasattr(module, _INIT) else None
    return _BUILT_IN.get(kind) or _of_transformers(kind)


@functools.cache
def _of_transformers(kind: Any) -> Substitution | None:
    """Returns how a class of transformers is replaced, by its name, so that the package is not imported."""
    if not kind.__module__.startswith("transformers.models."):
        return None
    known: dict[str, Family] = {}
    for model in (bert, gpt2, gptj, gptneo, roberta):
        known |= model.CLASSES
    family = known.get(kind.__name__)
    if family is None:
        return None
    names = {name for each in _STACK for name in _keywords(each)}

    def make(module: Any, options: Mapping[str, Any]) -> nn.Module:
        own = {name: value for name, value in options.items() if name in names}
        made: nn.Module = substitute(
            module, lambda: family.substitute(**family.arguments(module) | own), family.to_ours
        )
        return made

    return Substitution(
        family.substitute,
        make,
        widths=lambda module: family.widths(module.config),
        translate=(family.to_theirs, family.to_ours),
        copies=True,
        call=family.caller(kind.forward),
        problem=lambda module: family.problem(module.config),
    )


def _check(dist_module: Any, *hooks: Any) -> None:
    if not (isinstance(dist_module, type) and issubclass(dist_module, DistributedModule)):
        raise ValueError(
            f"[smdp] tp_register got dist_module = {dist_module!r}; expected a class derived from"
            " smp.nn.DistributedModule"
        )
    for name, hook in zip(("init_hook", "forward_hook", "return_hook"), hooks, strict=True):
        if hook is not None and not callable(hook):
            raise ValueError(f"[smdp] tp_register got {name} = {hook!r}; expected a function or None")


def _record_arguments(kind: type) -> None:
    """Makes modules of exactly this class keep the arguments with which they are created."""
    plain = kind.__init__  # type: ignore[misc]
    if getattr(plain, "_smp_records", False):
        return

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if type(self) is kind:
            object.__setattr__(self, _INIT, (args, kwargs))

    init._smp_records = True  # type: ignore[attr-defined]
    kind.__init__ = init  # type: ignore[misc]


def _keywords(kind: type) -> tuple[str, ...]:
    found = inspect.signature(kind).parameters.values()
    return tuple(each.name for each in found if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))


def _takes_any(kind: type) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(kind).parameters.values())
