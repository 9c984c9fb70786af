"""The Python that `smdp plan --emit` prints: the functions exist and take the keywords."""

from __future__ import annotations

import inspect

import pytest

import smdp.torch
from smdp.plan.calls import CALLS


@pytest.mark.parametrize("name", [name for name in CALLS if name.startswith("smdp.torch.")])
def test_function_takes_the_keywords(name: str) -> None:
    function = getattr(smdp.torch, name.removeprefix("smdp.torch."))
    assert CALLS[name] <= set(inspect.signature(function).parameters)
