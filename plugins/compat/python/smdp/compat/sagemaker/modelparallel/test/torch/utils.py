"""`smdistributed.modelparallel.test.torch.utils`: names that BERT scripts import in their training loops."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["dump_model", "verify"]


def verify(*args: Any, **kwargs: Any) -> NoReturn:
    """Always raises an error, because this function belongs to the tests of Amazon's library.

    Raises:
        NotImplementedError: Always.
    """
    _refuse("verify")


def dump_model(*args: Any, **kwargs: Any) -> NoReturn:
    """Always raises an error, because this function belongs to the tests of Amazon's library.

    Raises:
        NotImplementedError: Always.
    """
    _refuse("dump_model")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"[smdp] smdistributed.modelparallel.test.torch.utils.{name} belongs to the tests of Amazon's"
        " library, and smdp does not have it; to compare or save the whole model, use"
        " model.state_dict()"
    )
