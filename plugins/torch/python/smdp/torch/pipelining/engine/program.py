"""Applies the model and the user's loss function to one microbatch."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Container
from typing import Any, Protocol

from torch import Tensor, nn

LossFunction = Callable[..., Any]

_log = logging.getLogger(__name__)


class LossScaler(Protocol):
    """Multiplies the loss, so that small gradients do not vanish.

    An optional method `forget_gradients()` is called on every rank before gradients change.
    """

    def scale(self, loss: Any) -> Any:
        """Returns the loss times the loss scale."""


class Program:
    """Calls the model with the arguments that its forward accepts.

    Args:
        model: The whole model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._signature = signature = inspect.signature(model.forward)
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
        self._takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds
        self._names = {
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        }
        self._hints: set[str] = set()
        self._positions = sum(
            kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for kind in kinds
        )

    def check(self, microbatch: Any) -> None:
        """Checks that the model's forward accepts the arguments that a microbatch contains.

        Raises:
            ValueError: An argument is missing or does not fit.
        """
        args, kwargs = self.arguments(microbatch)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            given = (
                f"the keys {', '.join(map(repr, microbatch))}"
                if isinstance(microbatch, dict)
                else f"{len(args)} items"
            )
            unknown = (
                [name for name in microbatch if name not in kwargs] if isinstance(microbatch, dict) else []
            )
            raise ValueError(
                f"[smdp] the forward of {type(self.model).__name__} takes {self._signature}, but the batch"
                f" has {given}: {error}{self._hint(unknown, kwargs, 0.6)}"
            ) from None

    def check_keys(self, microbatch: Any, loss_fn: LossFunction | None) -> None:
        """Raises if a key is a misspelled argument of the forward; warns if the loss function may use it.

        Raises:
            ValueError: A key resembles an argument of the forward that is missing, and no function uses the
                key.
        """
        if not isinstance(microbatch, dict):
            return
        unknown = [name for name in microbatch if name not in self._names]
        model = type(self.model).__name__
        nobodys = loss_fn is None or not _wants_microbatch(loss_fn)
        # **kwargs of a forward may mean anything.
        if nobodys and (hint := self._hint(unknown, microbatch, 0.95 if self._takes_any_name else 0.9)):
            raise ValueError(
                f"[smdp] the forward of {model} does not take a key of the batch{hint} Arguments of the"
                f" forward: {', '.join(sorted(self._names))}"
            )
        hint = self._hint(unknown, microbatch, 0.75)
        if hint and hint not in self._hints:
            self._hints.add(hint)
            _log.warning(
                "[smdp] the forward of %s does not take a key of the batch%s If the key is correct, ignore"
                " this warning.",
                model,
                hint,
            )

    def _hint(self, unknown: list[Any], given: Container[Any], least: float) -> str:
        free = [name for name in self._names if name not in given]
        for name in unknown:
            for near in difflib.get_close_matches(str(name), free, 1, least):
                return f": {name!r}; did you mean {near!r}?"
        return ""

    def arguments(self, microbatch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the items of a microbatch that the model's forward accepts."""
        if isinstance(microbatch, dict):
            named = {
                name: item for name, item in microbatch.items() if self._takes_any_name or name in self._names
            }
            return (), self.without_cache((), named)
        items = tuple(microbatch) if isinstance(microbatch, (tuple, list)) else (microbatch,)
        items = items if self._takes_any_number else items[: self._positions]
        return items, self.without_cache(items, {})

    def without_cache(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns keyword arguments with `use_cache=False` if the forward accepts it.

        Training does not need a cache of keys and values, and each rank would hold a different part of it.
        """
        if "use_cache" not in self._names or "use_cache" in kwargs:
            return kwargs
        if len(args) > list(self._signature.parameters).index("use_cache"):
            return kwargs
        return {**kwargs, "use_cache": False}


def loss_of(function: LossFunction | None) -> Callable[[Any, Any], Any]:
    """Returns a function that computes the loss from the model's output and the microbatch."""
    if function is None:
        return lambda output, microbatch: _own_loss(output)
    if _wants_microbatch(function):
        return function
    return lambda output, microbatch: function(output)


def _own_loss(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict) and "loss" in output:
        return output["loss"]
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    raise ValueError(
        f"[smdp] the model returned a {type(output).__name__} and there is no loss_fn; expected a model that"
        " returns its loss, a dict with 'loss' or a tuple that starts with the loss, or pass a loss_fn"
    )


def _wants_microbatch(function: LossFunction) -> bool:
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    has_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    return len(needed) >= 2 or (has_any and len(needed) < 2)
