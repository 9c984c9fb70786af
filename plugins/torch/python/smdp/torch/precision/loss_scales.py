"""The factor by which the loss is multiplied, so that small gradients do not vanish in 16 bits."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class LossScale(Protocol):
    """A loss scale, which may change after every step.

    Attributes:
        value: The factor.
        is_dynamic: Whether gradients are searched for infinite and NaN elements.
    """

    value: float
    is_dynamic: bool

    def update(self, *, has_overflow: bool) -> None:
        """Ends a step."""

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes what a checkpoint has kept."""


class StaticLossScale:
    """A factor that stays the same, with which steps do not look for overflows.

    Args:
        value: The factor, above 0.

    Attributes:
        value: The factor.
    """

    is_dynamic = False

    def __init__(self, value: float) -> None:
        check_scale("loss_scale", value)
        self.value = float(value)

    def update(self, *, has_overflow: bool) -> None:
        """Changes nothing."""

    def state(self) -> dict[str, Any]:
        """Returns the factor."""
        return {"loss_scale": self.value}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes the factor."""
        self.value = float(state["loss_scale"])


class DynamicLossScale:
    """A factor that shrinks after overflows and grows after a number of steps without one.

    Args:
        init_scale: The first factor.
        scale_factor: What the factor is multiplied or divided by, above 1.
        scale_window: The number of steps without an overflow after which the factor grows.
        min_scale: The smallest factor, above 0.
        delayed_shift: How many overflows it takes until the factor shrinks. The first ones only skip their
            steps. Once the factor has grown, as many overflows are allowed again.
        consecutive_hysteresis: Whether every step without an overflow allows them again, so that only
            overflows in a row shrink the factor.

    Attributes:
        value: The factor.

    Raises:
        ValueError: A number is out of range.
    """

    is_dynamic = True

    def __init__(
        self,
        init_scale: float = 2.0**32,
        scale_factor: float = 2.0,
        scale_window: int = 1000,
        min_scale: float = 1.0,
        delayed_shift: int = 1,
        *,
        consecutive_hysteresis: bool = False,
    ) -> None:
        check_scale("init_scale", init_scale)
        check_scale("min_scale", min_scale)
        if not (scale_factor > 1 and math.isfinite(scale_factor)):
            raise ValueError(f"[smdp] scale_factor is {scale_factor!r}; allowed: a number above 1.")
        for name, count in (("scale_window", scale_window), ("delayed_shift", delayed_shift)):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"[smdp] {name} is {count!r}; allowed: an integer of at least 1.")
        self.value = float(init_scale)
        self._factor = float(scale_factor)
        self._window = scale_window
        self._least = float(min_scale)
        self._allowed = delayed_shift
        self._is_consecutive = consecutive_hysteresis
        self._left = delayed_shift  # overflows until the factor shrinks
        self._clean = 0  # steps without an overflow since the last one, or since the factor has grown

    def update(self, *, has_overflow: bool) -> None:
        """Ends a step."""
        if has_overflow:
            self._clean = 0
            if self._left > 1:
                self._left -= 1
                return
            if self.value <= self._least:
                _log.warning(
                    "[smdp] the gradients overflow at the smallest loss scale, %s; the loss or the parameters"
                    " are probably infinite or NaN",
                    self._least,
                )
            self.value = max(self.value / self._factor, self._least)
            return
        if self._is_consecutive:
            self._left = self._allowed
        self._clean += 1
        if self._clean == self._window:
            self._clean = 0
            self._left = self._allowed
            self.value *= self._factor

    def state(self) -> dict[str, Any]:
        """Returns the factor and what its next changes depend on."""
        return {"loss_scale": self.value, "clean_steps": self._clean, "overflows_left": self._left}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes the result of `state()`. That of a static scale sets the factor alone."""
        self.value = float(state["loss_scale"])
        self._clean = int(state.get("clean_steps", 0))
        self._left = int(state.get("overflows_left", self._allowed))


def made_loss_scale(asked: object, *, is_dynamic_by_default: bool) -> LossScale:
    """Returns the loss scale that an argument asks for.

    Args:
        asked: "dynamic", a number above 0, a `DynamicLossScale`, or None for the default.
        is_dynamic_by_default: Whether the default is "dynamic"; otherwise it is 1.

    Raises:
        ValueError: The argument has another value.
    """
    if isinstance(asked, DynamicLossScale):
        return copy.copy(asked)  # several optimizers may be created with the same object
    if asked == "dynamic" or (asked is None and is_dynamic_by_default):
        return DynamicLossScale()
    if asked is None:
        return StaticLossScale(1.0)
    if isinstance(asked, str):
        raise ValueError(f"[smdp] loss_scale is {asked!r}; allowed: 'dynamic', or a number above 0.")
    check_scale("loss_scale", asked)
    return StaticLossScale(asked)  # type: ignore[arg-type]


def check_scale(name: str, value: object) -> None:
    """Checks that a loss can be multiplied by a value.

    Raises:
        ValueError: It is not a finite number above 0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 < value < math.inf):  # type: ignore[operator]
        raise ValueError(f"[smdp] {name} is {value!r}; allowed: a finite number above 0.")
