"""Keeps torch.compile from compiling smdp's functions.

torch calls the process group between two compiled parts of a model, and the compiler would try to compile
that call. `torch.compiler.disable` would also prevent it, but it imports the compiler and wraps every call.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any


def hide_package(package: str) -> None:
    """Marks every function in the loaded modules of a package. Does nothing if torch has no such mark."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for function in _functions(vars(module), name):
                set_code_exec_strategy(function.__code__, skip)


def _functions(namespace: dict[str, Any], module: str) -> list[FunctionType]:
    functions = []
    for value in list(namespace.values()):
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType) and value.__module__ == module:
            functions.append(value)
        elif isinstance(value, type) and value.__module__ == module:
            functions += _functions(dict(vars(value)), module)
    return functions
