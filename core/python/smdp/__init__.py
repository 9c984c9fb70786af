"""smdp: distributed training across processes and machines.

    import smdp
    group = smdp.init()            # reads the rank from the launcher's variables
    group.all_reduce(array)        # NumPy arrays and other CPU buffers

With PyTorch, call ``torch.distributed.init_process_group("smdp")`` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import ClosedError as ClosedError
from ._errors import ConfigError as ConfigError
from ._errors import MismatchError as MismatchError
from ._errors import PeerLostError as PeerLostError
from ._errors import SmdpError as SmdpError
from ._errors import TimeoutError as TimeoutError

if TYPE_CHECKING:
    from ._handle import Handle as Handle
    from ._observability import explain as explain
    from ._observability import print_step as print_step
    from ._observability import stats as stats
    from ._reduce_op import AVG as AVG
    from ._reduce_op import BAND as BAND
    from ._reduce_op import BOR as BOR
    from ._reduce_op import BXOR as BXOR
    from ._reduce_op import MAX as MAX
    from ._reduce_op import MIN as MIN
    from ._reduce_op import PREMUL_SUM as PREMUL_SUM
    from ._reduce_op import PRODUCT as PRODUCT
    from ._reduce_op import SUM as SUM
    from ._reduce_op import ReduceOp as ReduceOp
    from ._run import run as run
    from ._world import init as init
    from ._world import is_initialized as is_initialized
    from ._world import local_rank as local_rank
    from ._world import local_size as local_size
    from ._world import rank as rank
    from ._world import shutdown as shutdown
    from ._world import size as size
    from ._world import world as world
    from .group import NO_GROUP as NO_GROUP
    from .group import Group as Group
    from .group import NoGroup as NoGroup
    from .preemption import exit_if_preempted as exit_if_preempted
    from .preemption import preempted as preempted
    from .preemption import watch_preemption as watch_preemption

# The module of each public name. Names are imported on first use to keep the command line fast.
_MODULES = {
    "_handle": {"Handle"},
    "_observability": {"explain", "print_step", "stats"},
    "_reduce_op": {"ReduceOp", "SUM", "AVG", "PREMUL_SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"},
    "_run": {"run"},
    "_world": {"init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size", "world"},
    "group": {"Group", "NO_GROUP", "NoGroup"},
    "preemption": {"exit_if_preempted", "preempted", "watch_preemption"},
}
_ERRORS = {"ClosedError", "ConfigError", "MismatchError", "PeerLostError", "SmdpError", "TimeoutError"}

__all__ = [  # noqa: PLE0604 - computed from the tables above
    "__version__",
    *sorted(_ERRORS.union(*_MODULES.values())),
]


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("smdp")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"smdp.{module}"), name)
    raise AttributeError(f"module 'smdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
