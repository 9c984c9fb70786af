"""Makes transformers' Trainers raise a helpful error when they get plugins."""

from __future__ import annotations

import atexit
import functools
from typing import Any

import transformers

from smdp.torch.plugin_support import unwatch

# Subclasses pass unknown arguments on to these. __init__ is patched, because __new__ could not be restored.
_CLASSES = (transformers.Trainer, transformers.Seq2SeqTrainer)
# The original and the patched method, by class.
_taught: dict[Any, tuple[Any, Any]] = {}


def install() -> None:
    """Patches transformers' Trainers: if they get plugins, their error names smdp's Trainer.

    The patch stays until the program ends or `uninstall()` is called. Calling it again does nothing.
    """
    if _taught:
        return
    for trainer_class in _CLASSES:
        plain: Any = trainer_class.__init__
        _taught[trainer_class] = plain, _refusing(plain)
        trainer_class.__init__ = _taught[trainer_class][1]
    atexit.register(uninstall)


def uninstall() -> None:
    """Restores transformers' Trainers and torch's DataLoader unless other code has patched them since."""
    for trainer_class, (plain, own) in _taught.items():
        if trainer_class.__init__ is own:
            trainer_class.__init__ = plain
    _taught.clear()
    unwatch()
    atexit.unregister(uninstall)


def _refusing(plain: Any) -> Any:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "plugins" in kwargs and _taught:  # after uninstall(), another patch may still call this one
            name = type(self).__name__
            raise TypeError(
                f"[smdp] {name} does not support plugins. Use smdp.transformers.Trainer, or"
                f" smdp.transformers.with_plugins({name})."
            )
        plain(self, *args, **kwargs)

    return init
