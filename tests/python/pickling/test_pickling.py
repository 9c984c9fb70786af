"""What cloudpickle adds where it is installed, and what it must not change."""

from __future__ import annotations

import pickle
import sys

import pytest

from smdp._pickling import dumps


class Mine:
    pass


def test_classes_go_by_name() -> None:
    assert pickle.loads(dumps({"mine": Mine})) == {"mine": Mine}
    assert b"Mine" in dumps(Mine()) and len(dumps(Mine())) < 100


def test_lambdas() -> None:
    pytest.importorskip("cloudpickle")
    assert pickle.loads(dumps(lambda: 3))() == 3


def test_without_cloudpickle_the_error_is_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        dumps(lambda: 3)
