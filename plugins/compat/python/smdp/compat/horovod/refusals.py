"""Names of Horovod that smdp does not provide, each with an error that says what to use instead."""

from __future__ import annotations

from typing import NoReturn

_START = "start the script with smdp run, torchrun or mpirun."
_ELASTIC = (
    "a world of smdp has a fixed size. Start the script with torchrun --max-restarts, save checkpoints, and"
    " load the newest one at the start."
)
_MODULES = {
    "elastic": _ELASTIC,
    "data": "use torch.utils.data.DataLoader or tf.data.",
    "mxnet": "smdp works with PyTorch and TensorFlow.",
    "ray": "see smdp's page on Ray, or " + _START,
    "run": _START,
    "runner": _START,
    "spark": _START,
}
_TIMELINE = "set SMDP_TRACE=FOLDER before the start, and view the trace with smdp trace."
_SETS = "pass process_set=smdp.world().split(color) to the calls, after init()."
_PARTIAL = "compute the gradients of local layers with a tape or optimizer that is not distributed."
_NAMES = {
    "elastic": _ELASTIC,
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    # smdp has these for PyTorch only.
    "ProcessSet": _SETS,
    "add_process_set": _SETS,
    "remove_process_set": _SETS,
    "global_process_set": "call init() first. It stands for all ranks, as does a call without process_set.",
    "process_set_included_op": _SETS,
    "PartialDistributedGradientTape": _PARTIAL,
    "PartialDistributedOptimizer": _PARTIAL,
}


class NotThereError(NotImplementedError, AttributeError):
    """Also an AttributeError, so that hasattr() returns False."""


def refuse_module(name: str) -> NoReturn:
    """Raises an error for a module of Horovod that smdp does not provide.

    Args:
        name: Name of the module, without the leading "horovod.".

    Raises:
        ImportError: Always. It says what to use instead.
    """
    cure = _MODULES[name.rpartition(".")[2]]
    raise ImportError(f"[smdp] horovod.{name} is not supported: {cure}", name=f"horovod.{name}")


def no_attribute(module: str, name: str) -> NoReturn:
    """Raises an error for a name that a module does not have.

    Raises:
        AttributeError: Always. For a name of Horovod, it says what to use instead.
    """
    if name == "Adasum":
        raise NotThereError("[smdp] Adasum is not supported; use Average or Sum.")
    cure = (_MODULES if module == "horovod" else _NAMES).get(name)
    if cure is not None:
        raise NotThereError(f"[smdp] {module}.{name} is not supported: {cure}")
    raise AttributeError(f"[smdp] {module} has no {name!r}; see smdp's page on moving from Horovod.")
