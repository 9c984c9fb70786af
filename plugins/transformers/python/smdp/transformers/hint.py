"""Makes transformers' own Trainers say, where they get plugins, which ones take them."""

from __future__ import annotations

import atexit
import functools
from typing import Any

import transformers

# Subclasses hand on to them what they do not know. No __new__: a class cannot get its own back.
_CLASSES = (transformers.Trainer, transformers.Seq2SeqTrainer)


def install() -> None:
    """Teach them, until the program ends. Calling it again does nothing."""
    for trainer_class in _CLASSES:
        if not hasattr(trainer_class.__init__, "smdp_plain"):
            trainer_class.__init__ = _refusing(trainer_class.__init__)
    atexit.register(uninstall)


def uninstall() -> None:
    """Give both Trainers back as they were."""
    for trainer_class in _CLASSES:
        plain = trainer_class.__init__
        trainer_class.__init__ = getattr(plain, "smdp_plain", plain)


def _refusing(plain: Any) -> Any:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "plugins" in kwargs:
            name = type(self).__name__
            raise TypeError(
                f"[smdp] {name} takes no plugins. Use smdp.transformers.Trainer, or"
                f" smdp.transformers.with_plugins({name})."
            )
        plain(self, *args, **kwargs)

    init.smdp_plain = plain  # type: ignore[attr-defined]
    return init
