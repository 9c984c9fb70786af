"""Rules that decide which calls of modules are recomputed, and together with which others."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from smdp.torch.recompute.recomputed_group import RecomputedGroup
from smdp.torch.recompute.selective_results import SelectiveResults

_thread = threading.local()


class Rule(Protocol):
    """Runs the calls of some modules."""

    def run(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call, whose saved tensors are kept or recomputed.

        Args:
            name: The name of the module.
            call: Its own forward.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """


class Groups:
    """The groups that may be continued, found by the tensors that their last calls returned.

    No state says which group is open, so calls for several microbatches may alternate. A call whose arguments
    come from elsewhere, such as another stage, begins a new group.
    """

    def __init__(self) -> None:
        self._by_output = WeakTensorKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_output": WeakTensorKeyDictionary()}

    def before(self, args: Any, kwargs: Any) -> RecomputedGroup | None:
        """Returns the group whose last call returned one of the arguments, or None."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and (found := self._by_output.get(leaf)) is not None:
                group: RecomputedGroup | None = found()
                if group is not None and group.is_followed_by(leaf):
                    return group
        return None

    def note(self, result: Any, group: RecomputedGroup) -> None:
        """Notes the result of the last call of a group."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._by_output[leaf] = weakref.ref(group)


class FixedRule:
    """Recomputes every call, with up to `size` calls in a group.

    Args:
        size: Most calls in a group. None: any number.
        is_selective: Whether results that are expensive per byte are kept.
        preserves_random_numbers: Whether the calls draw the same random numbers when they run again.
    """

    def __init__(
        self, size: int | None = 1, *, is_selective: bool = False, preserves_random_numbers: bool = True
    ) -> None:
        self._size = size
        self._preserves = preserves_random_numbers
        self._selective = defaultdict[str, SelectiveResults](SelectiveResults) if is_selective else None
        self._groups = Groups()

    def run(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call; see Rule."""
        group = self._groups.before(args, kwargs) if self._size != 1 else None
        if group is None or len(group) == self._size:
            contexts = self._selective[name] if self._selective is not None else None
            group = RecomputedGroup(contexts, preserves_random_numbers=self._preserves)
        result = group.run(name, call, args, kwargs)
        if self._size != 1:
            self._groups.note(result, group)
        return result


def following(rule: Rule, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls a module's forward by a rule."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return rule.run(name, call, args, kwargs)

    return run


def surrounding_rule() -> Rule | None:
    """Returns the rule for the units that the model's code calls on this thread, or None."""
    return getattr(_thread, "rule", None)


@contextlib.contextmanager
def units_follow(rule: Rule) -> Iterator[None]:
    """Applies a rule to the units that are called in the context, instead of to the code between them."""
    before = surrounding_rule()
    _thread.rule = rule
    try:
        yield
    finally:
        _thread.rule = before
