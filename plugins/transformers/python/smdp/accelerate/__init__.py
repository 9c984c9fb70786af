"""Makes Accelerate take the backend "smdp" by name, on CPUs too.

Example:
    >>> import smdp.accelerate
    >>> from accelerate.utils import InitProcessGroupKwargs
    >>> handler = InitProcessGroupKwargs(backend="smdp")
    >>> accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])  # doctest: +SKIP
"""

from __future__ import annotations

from smdp._frameworks import require

require("smdp.accelerate", "accelerate")

from smdp.accelerate.partial_state import install as install
from smdp.accelerate.partial_state import uninstall as uninstall

install()

__all__ = ["install", "uninstall"]
