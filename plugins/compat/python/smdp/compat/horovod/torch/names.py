"""Names of calls, which ranks compare."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from smdp._call_name import call_name

_Function = TypeVar("_Function", bound=Callable[..., Any])


def under_its_name(function: _Function) -> _Function:
    """Decorates a function so that ranks compare its argument `name`, if it is given."""
    place = list(inspect.signature(function).parameters).index("name")

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        name = args[place] if len(args) > place else kwargs.get("name")
        if not name:
            return function(*args, **kwargs)
        with call_name(name):
            return function(*args, **kwargs)

    return cast(_Function, named)
