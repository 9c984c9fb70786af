"""Python objects as bytes."""

from __future__ import annotations

import pickle
from typing import Any


def dumps(obj: Any) -> bytes:
    """Pickle an object; where cloudpickle is installed, one with lambdas or local classes too.

    Raises:
        Exception: As pickle and cloudpickle do: it cannot be pickled.
    """
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Not before: it would send the script's own classes by value, and isinstance() would say no.
        try:
            import cloudpickle
        except ModuleNotFoundError:
            pass
        else:
            return bytes(cloudpickle.dumps(obj))
        raise
