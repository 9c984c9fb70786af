"""Lets scripts written for SMDDP and Horovod run on smdp. Users import it as `smdp.compat`.

This is a separate package because, with SMDP_COMPAT=1, every Python process of a job loads it at its start
(see smdp_compat.pth). It imports neither a framework nor the core until a script imports SMDDP or Horovod.
"""

from __future__ import annotations

import functools
import os
import sys

from smdp_compat.bridges import Bridges
from smdp_compat.finder import AliasFinder, RefusalFinder, installed_original
from smdp_compat.job_variables import set_job_variables, take_back_job_variables

_VARIABLE = "SMDP_COMPAT"


def install() -> None:
    """Makes imports of `smdistributed` and `horovod` use smdp, in this process and those it starts.

    The rank of this process is detected as in `smdp.init()`, even if SMDP_COMPAT=1 has already done the rest.
    A second call changes nothing.

    Raises:
        ImportError: Amazon's smdistributed is installed, and smdp does not hide it.
    """
    original = installed_original("smdistributed")
    if original is not None:
        raise ImportError(
            f"[smdp] Amazon's smdistributed is installed ({original}); smdp.compat does not hide it."
            " Uninstall it, or run without --compat."
        )
    os.environ[_VARIABLE] = "1"
    activate()
    set_job_variables(is_script=True)


@functools.cache  # some Pythons read their .pth files twice
def activate_by_variable() -> None:
    """Runs when a Python process of a job starts with SMDP_COMPAT set and not off."""
    text = os.environ[_VARIABLE]
    if text.strip().lower() in ("1", "true", "yes"):
        activate()
    else:
        sys.stderr.write(
            f"[smdp] SMDP_COMPAT is {text!r}; allowed: 1, true, yes, 0, false, no. It stays off.\n"
        )


def activate() -> None:
    """Does the work of install(), but fails only when Amazon's smdistributed is imported.

    The process may be a launcher. It is treated as a rank only if a variable such as RANK is set.
    """
    if is_installed():
        return
    sys.meta_path[:0] = [AliasFinder(), Bridges()]
    sys.meta_path.append(RefusalFinder())
    set_job_variables()
    for bridge in _bridges():
        bridge.apply_to_what_is_imported()


def uninstall() -> None:
    """Undoes install(): removes the finders, variables, bridges, and the timing of torch's DataLoader.

    Modules that a script has already imported keep working.
    """
    for bridge in _bridges():
        bridge.take_back()
    if "smdp.torch.data_parallel.input_wait" in sys.modules:
        sys.modules["smdp.torch.data_parallel.input_wait"].unwatch()
    ours = AliasFinder | Bridges | RefusalFinder
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ours)]
    for name in [name for name in sys.modules if AliasFinder.serves(name)]:
        if getattr(sys.modules[name], "__name__", "").startswith("smdp."):
            del sys.modules[name]
    take_back_job_variables()
    os.environ.pop(_VARIABLE, None)


def is_installed() -> bool:
    """Returns whether install() is in effect."""
    return any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


def _bridges() -> list[Bridges]:
    return [finder for finder in sys.meta_path if isinstance(finder, Bridges)]
