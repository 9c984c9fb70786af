"""Makes Accelerate accept the backend "smdp" by name, also on CPUs, and averages gradients with smdp.

It is loaded when a script names the backend, so scripts need not import it.

Example:
    >>> from accelerate.utils import InitProcessGroupKwargs
    >>> handler = InitProcessGroupKwargs(backend="smdp")
    >>> accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])  # doctest: +SKIP
"""

from __future__ import annotations

from smdp._frameworks import require

require("smdp.accelerate", "accelerate")

from smdp.accelerate.data_parallel import DataParallel as DataParallel
from smdp.accelerate.partial_state import install as install
from smdp.accelerate.partial_state import uninstall as uninstall

install()

__all__ = ["DataParallel", "install", "uninstall"]
