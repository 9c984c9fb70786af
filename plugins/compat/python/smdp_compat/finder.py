"""Import finders that resolve the modules of SMDDP, SMP and Horovod to smdp's."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

# By the first part of the name. If the original is installed, smdistributed is an error, and the others
# resolve to the original.
_TARGETS = {
    "smdistributed": "smdp.compat.sagemaker",
    "smddpcommon": "smdp.compat.sagemaker.dataparallel.smddpcommon",
    "herringcommon": "smdp.compat.sagemaker.dataparallel.smddpcommon",
    "horovod": "smdp.compat.horovod",
}

_SMP_2 = (
    "[smdp] torch.sagemaker is SageMaker Model Parallel version 2, which shards models with torch's FSDP."
    " smdp supports version 1, `import smdistributed.modelparallel.torch as smp`. For a script of version 2,"
    ' use torch\'s fully_shard after dist.init_process_group("smdp"), or smdp.torch.pipeline(model).'
)


def installed_original(top: str) -> str | None:
    """Returns where the original library of this name is installed, or None if it is not."""
    spec = PathFinder.find_spec(top, None)
    if spec is None:
        return None
    if spec.origin is not None:
        return spec.origin
    # A folder without __init__.py is the original only if it has the original's packages.
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    theirs = ("dataparallel", "modelparallel")
    return next((str(p) for p in places if any((p / name).is_dir() for name in theirs)), None)


class AliasFinder(MetaPathFinder):
    """Finds smdp's module for a name such as `smdistributed.dataparallel.torch.distributed`."""

    @staticmethod
    def serves(name: str) -> bool:
        """Returns whether smdp may provide a module of this name."""
        return name.partition(".")[0] in _TARGETS

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec that loads smdp's module under the other library's name, or None."""
        top, _, rest = fullname.partition(".")
        if top not in _TARGETS:
            return None
        original = installed_original(top)
        if original is not None:
            if top == "smdistributed":
                raise ImportError(
                    f"[smdp] SMDP_COMPAT is on, but Amazon's smdistributed is installed ({original}), and"
                    " smdp does not hide it. Uninstall it, or run without --compat, which sets SMDP_COMPAT."
                )
            return None
        name = ".".join(filter(None, [_TARGETS[top], rest]))
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        spec = ModuleSpec(fullname, _AliasLoader(name), origin=found.origin, is_package=is_package)
        return spec


class RefusalFinder(MetaPathFinder):
    """Raises an error that says what to use when a script imports a name that smdp does not provide.

    It is the last finder. It is needed because `from package import name` discards the message of the
    package's __getattr__ and then looks for a module of that name.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raises the error of the package's __getattr__, if it has one for this name."""
        if fullname == "torch.sagemaker":
            raise ModuleNotFoundError(_SMP_2, name=fullname)
        package, _, name = fullname.rpartition(".")
        if not f"{package}.".startswith(_TARGETS["horovod"] + "."):
            return
        try:
            getattr(sys.modules.get(package), name)
        except NotImplementedError as error:
            raise ImportError(str(error), name=fullname) from None
        except AttributeError:
            return


class _AliasLoader(Loader):
    """Loads smdp's module as one object under both names. Classes pickle by smdp's name, always valid."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            module = importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            from smdp._frameworks import FRAMEWORKS, require

            try:
                if error.name in FRAMEWORKS:
                    require(spec.name, error.name)  # raises an error that says what to install
            except ImportError as what:
                raise ModuleNotFoundError(str(what), name=error.name) from None
            raise
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib had set the alias's spec
