"""The arguments that `smdp plan --emit trainer` prints: the plugins take them."""

from __future__ import annotations

import inspect

import pytest

import smdp.transformers
from smdp.plan.calls import CALLS


@pytest.mark.parametrize("name", [name for name in CALLS if name.startswith("smdp.transformers.")])
def test_plugin_takes_the_arguments(name: str) -> None:
    plugin = getattr(smdp.transformers, name.removeprefix("smdp.transformers."))
    assert CALLS[name] <= set(inspect.signature(plugin).parameters)
