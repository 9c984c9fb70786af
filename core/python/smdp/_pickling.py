"""Serialization of Python objects."""

from __future__ import annotations

import pickle
from typing import Any


def dumps(obj: Any) -> bytes:
    """Pickles an object. If cloudpickle is installed, lambdas and local classes are supported as well.

    Raises:
        Exception: The error from pickle or cloudpickle if the object cannot be pickled.
    """
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Only as a fallback: cloudpickle sends the script's own classes by value, which breaks isinstance().
        try:
            import cloudpickle
        except ModuleNotFoundError:
            pass
        else:
            return bytes(cloudpickle.dumps(obj))
        raise
