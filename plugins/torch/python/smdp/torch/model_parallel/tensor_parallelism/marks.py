"""`smp.tensor_parallelism` and `smp.set_tensor_parallelism`: mark modules that may be replaced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from smdp.torch.model_parallel.job.validation import nearest

_MARK = "_smp_tensor_parallelism"
_contexts = threading.local()

# Contexts of several threads may overlap and end in any order; the last one restores the constructor.
_lock = threading.Lock()
_patching = 0
_plain_init: Any = nn.Module.__init__

# Arguments of distributed modules that scripts pass; every module ignores those that it does not have.
KEYWORDS: tuple[str, ...] = (
    "fused_softmax",
    "fused_bias_gelu",
    "fused_dropout",
    "attention_in_fp32",
    "query_key_layer_scaling",
    "fp32_residual_addition",
    "zero_init",
    "distribute_embedding",
    "flash_attention",
    "triton_flash_attention",
    "use_alibi",
    "alibi_bias_max",
    "initializer_range",
    "use_normal_initialization",
)


@dataclass(frozen=True)
class Mark:
    """What a script says about a module.

    Attributes:
        is_enabled: Whether the module may be replaced.
        options: Keyword arguments for its substitute.
    """

    is_enabled: bool
    options: Mapping[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def tensor_parallelism(enabled: bool = True, **kwargs: Any) -> Iterator[None]:
    """Marks modules created in this context for tensor parallelism. Can also be used as a decorator.

    `smp.DistributedModel` replaces the outermost marked modules that are supported. The innermost context
    counts.

    Args:
        enabled: False: modules created in this context are not replaced.
        **kwargs: Arguments of the substitutes, which take precedence over those of the modules.

    Raises:
        ValueError: A keyword is unknown.
    """
    mark = Mark(enabled, _checked(kwargs))
    outer = getattr(_contexts, "mark", None)
    _contexts.mark = mark
    with _marking() if outer is None else contextlib.nullcontext():
        try:
            yield
        finally:
            _contexts.mark = outer


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **kwargs: Any) -> None:
    """Marks a module and all modules in it for tensor parallelism, before `smp.DistributedModel`.

    Args:
        module: The module.
        enabled: False: removes the marks, so that the modules are not replaced.
        **kwargs: Arguments of the substitutes; see `tensor_parallelism`.

    Raises:
        ValueError: `module` is not a module, or a keyword is unknown.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"[smdp] smp.set_tensor_parallelism got {type(module).__name__}; expected a torch.nn.Module"
        )
    mark = Mark(enabled, _checked(kwargs))
    for each in module.modules():
        object.__setattr__(each, _MARK, mark)


def mark_of(module: nn.Module) -> Mark:
    """Returns a module's mark; modules without one are not replaced."""
    return getattr(module, _MARK, Mark(is_enabled=False))


def mark_replaced(before: Iterable[nn.Parameter], substitute: nn.Module) -> None:
    """Marks the parameters of a module that its substitute does not have."""
    kept = set(substitute.parameters())
    for parameter in before:
        if parameter not in kept:
            parameter._smp_is_replaced = True


def check_not_replaced(parameters: Iterable[Any]) -> None:
    """Checks that an optimizer has no parameters of modules that have been replaced.

    Raises:
        ValueError: It has.
    """
    if any(getattr(parameter, "_smp_is_replaced", False) for parameter in parameters):
        raise ValueError(
            "[smdp] the optimizer has parameters of modules that smp.DistributedModel has replaced by"
            " distributed ones; create it after smp.DistributedModel, with model.parameters()"
        )


def accept_keywords(names: tuple[str, ...]) -> None:
    """Makes the contexts accept the arguments of a substitute that a script registers."""
    global KEYWORDS
    KEYWORDS += tuple(name for name in names if name not in KEYWORDS)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in KEYWORDS:
            raise ValueError(
                f"[smdp] smp.tensor_parallelism has no keyword {name!r}{nearest(name, list(KEYWORDS)) or '.'}"
                f" Known: {', '.join(sorted(KEYWORDS))}, and the arguments of registered substitutes"
            )
    return dict(given)


@contextlib.contextmanager
def _marking() -> Iterator[None]:
    """Marks each module at creation, because the module around it may be created outside of the context."""
    global _plain_init, _patching
    with _lock:
        if _patching == 0:
            _plain_init = nn.Module.__init__
            nn.Module.__init__ = _marked_init
        _patching += 1
    try:
        yield
    finally:
        with _lock:
            _patching -= 1
            if _patching == 0:
                nn.Module.__init__ = _plain_init


def _marked_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    _plain_init(self, *args, **kwargs)
    mark = getattr(_contexts, "mark", None)
    if mark is not None:
        object.__setattr__(self, _MARK, mark)
