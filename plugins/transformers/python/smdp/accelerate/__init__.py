"""Makes Accelerate take the backend "smdp" by name, on CPUs too.

Example:
    >>> import smdp.accelerate
    >>> from accelerate.utils import InitProcessGroupKwargs
    >>> handler = InitProcessGroupKwargs(backend="smdp")
    >>> accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])  # doctest: +SKIP
"""

from __future__ import annotations

try:
    import accelerate  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise ImportError('smdp.accelerate needs Accelerate: pip install "smdp[transformers]"') from error

from smdp.accelerate.partial_state import install as install
from smdp.accelerate.partial_state import uninstall as uninstall

install()

__all__ = ["install", "uninstall"]
