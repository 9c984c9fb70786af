"""What Horovod has and smdp has not, refused by name."""

from __future__ import annotations

from typing import NoReturn

_START = "start the script with smdp run, torchrun or mpirun."
_ELASTIC = (
    "smdp's worlds have a fixed size. Start with torchrun --max-restarts, save checkpoints, and load the"
    " newest at the start."
)
_MODULES = {
    "elastic": _ELASTIC,
    "data": "use torch.utils.data.DataLoader or tf.data.",
    "mxnet": "smdp works with PyTorch and TensorFlow.",
    "ray": "see the page on Ray, or " + _START,
    "run": _START,
    "runner": _START,
    "spark": _START,
}
_TIMELINE = "set SMDP_TRACE=FOLDER before the start, and look at it with smdp trace."
_SETS = "after init() give process_set=smdp.world().split(color) to the calls."
_PARTIAL = "take the gradients of local layers by a tape or optimizer that is not distributed."
_NAMES = {
    "elastic": _ELASTIC,
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    # PyTorch has these.
    "ProcessSet": _SETS,
    "add_process_set": _SETS,
    "remove_process_set": _SETS,
    "global_process_set": "it is after init(), and means all ranks, as does a call without process_set.",
    "process_set_included_op": _SETS,
    "PartialDistributedGradientTape": _PARTIAL,
    "PartialDistributedOptimizer": _PARTIAL,
}


class NotThereError(NotImplementedError, AttributeError):
    """So that hasattr() answers no."""


def refuse_module(name: str) -> NoReturn:
    """Raise for a module that a script imports.

    Args:
        name: Of the module, without the first word.

    Raises:
        ImportError: Always; it says what to use instead.
    """
    cure = _MODULES[name.rpartition(".")[2]]
    raise ImportError(f"[smdp] horovod.{name} is not there: {cure}", name=f"horovod.{name}")


def no_attribute(module: str, name: str) -> NoReturn:
    """Raise for a name that a module does not have.

    Raises:
        AttributeError: Always.
    """
    if name == "Adasum":
        raise NotThereError("[smdp] Adasum is not there; use Average or Sum.")
    cure = (_MODULES if module == "horovod" else _NAMES).get(name)
    if cure is not None:
        raise NotThereError(f"[smdp] {module}.{name} is not there: {cure}")
    raise AttributeError(f"[smdp] {module} has no {name!r}; see the page on moving from Horovod.")
