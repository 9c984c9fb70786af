"""Lets scripts written for SMDDP and Horovod run on smdp. `smdp.compat` is the same for users.

A package of its own because every Python process of a job loads it at its start where SMDP_COMPAT=1 (see
smdp_compat.pth): it imports neither a framework nor the core until a script asks for a module of theirs.
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
    """Make `smdistributed.dataparallel` and `horovod` resolve to smdp, in this process and those it starts.

    Which rank this process is, it finds out as `smdp.init()` does, also where SMDP_COMPAT=1 has done the rest
    already. Calling it again changes nothing.

    Raises:
        ImportError: Amazon's own smdistributed is installed; smdp does not stand in front of it.
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
    """What every Python of a job does at its start, where the variable is neither absent nor off."""
    text = os.environ[_VARIABLE]
    if text.strip().lower() in ("1", "true", "yes"):
        activate()
    else:
        sys.stderr.write(
            f"[smdp] SMDP_COMPAT is {text!r}; allowed: 1, true, yes, 0, false, no. It stays off.\n"
        )


def activate() -> None:
    """What install() does, but a smdistributed of Amazon's is an error only when it is imported.

    The process may be a launcher, so it takes itself for a rank only where a variable's name speaks of one.
    """
    if is_installed():
        return
    sys.meta_path[:0] = [AliasFinder(), Bridges()]
    sys.meta_path.append(RefusalFinder())
    set_job_variables()
    for bridge in _bridges():
        bridge.apply_to_what_is_imported()


def uninstall() -> None:
    """Undo install(): finder, variables, bridges, and the timing of torch's DataLoader that training began.

    Modules that scripts have imported stay with them.
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
    """Whether the finder is in place."""
    return any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


def _bridges() -> list[Bridges]:
    return [finder for finder in sys.meta_path if isinstance(finder, Bridges)]
