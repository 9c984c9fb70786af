"""Makes transformers' own Trainers say, where they get plugins, which ones take them."""

from __future__ import annotations

import atexit
import functools
from typing import Any

import transformers

from smdp.torch.plugin_support import unwatch

# Subclasses hand on to them what they do not know. No __new__: a class cannot get its own back.
_CLASSES = (transformers.Trainer, transformers.Seq2SeqTrainer)
# What stood there, and what stands there now.
_taught: dict[Any, tuple[Any, Any]] = {}


def install() -> None:
    """Teach them, until the program ends. Calling it again does nothing."""
    if _taught:
        return
    for trainer_class in _CLASSES:
        plain: Any = trainer_class.__init__
        _taught[trainer_class] = plain, _refusing(plain)
        trainer_class.__init__ = _taught[trainer_class][1]
    atexit.register(uninstall)


def uninstall() -> None:
    """Give both Trainers, and torch's DataLoader, back as they were.

    What somebody else has changed since stays.
    """
    for trainer_class, (plain, own) in _taught.items():
        if trainer_class.__init__ is own:
            trainer_class.__init__ = plain
    _taught.clear()
    unwatch()
    atexit.unregister(uninstall)


def _refusing(plain: Any) -> Any:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "plugins" in kwargs and _taught:  # else taken back, but below what somebody else put over it
            name = type(self).__name__
            raise TypeError(
                f"[smdp] {name} takes no plugins. Use smdp.transformers.Trainer, or"
                f" smdp.transformers.with_plugins({name})."
            )
        plain(self, *args, **kwargs)

    return init
