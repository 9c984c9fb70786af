"""Small changes to released packages that assume that SMDDP runs on GPUs.

Each change is made when its package is imported, and undone by uninstall(). Its docstring says why it is
needed: it becomes part of the warning if the package is too new.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import Any

from smdp_compat.job_variables import is_data_parallel
from smdp_compat.model_parallel_bridges import (
    accelerate_counts_replicas,
    accelerated_optimizer_saves_its_part,
    trainer_computes_on_cpu,
    trainer_makes_an_optimizer,
)

_Undo = Callable[[], None]


def _register_smddp(torch: Any) -> _Undo:
    """Old scripts use the backend "smddp" without importing anything for it."""
    from smdp_torch_autoload import register_backend, unregister_backend

    if not register_backend("smddp"):
        return lambda: None
    return lambda: unregister_backend("smddp")


def _keras_compile_takes_old_words(module: Any) -> _Undo:
    """Scripts for Keras 2 pass experimental_run_tf_function=False to compile(), as Horovod advised."""
    plain = module.Trainer.compile

    @functools.wraps(plain)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("experimental_run_tf_function", None)
        return plain(self, *args, **kwargs)

    module.Trainer.compile = compile
    return lambda: setattr(module.Trainer, "compile", plain)


def _keras_variables_can_be_called(module: Any) -> _Undo:
    """Scripts for Keras 2 call opt.variables(); in Keras 3 it is a list."""
    plain = module.BaseOptimizer.variables

    class Callable(list[Any]):
        def __call__(self) -> Any:
            return self

    module.BaseOptimizer.variables = property(lambda self: Callable(plain.fget(self)))
    return lambda: setattr(module.BaseOptimizer, "variables", plain)


def _keras_takes_lr(module: Any) -> _Undo:
    """Scripts for Keras 2 pass lr= to optimizers."""
    plain = module.BaseOptimizer.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            kwargs["learning_rate"] = kwargs.pop("lr")
        plain(self, *args, **kwargs)

    module.BaseOptimizer.__init__ = init
    return lambda: setattr(module.BaseOptimizer, "__init__", plain)


def _keras_optimizers_take_old_words(module: Any) -> _Undo:
    """Scripts for Keras 2 pass lr= to optimizers and call opt.variables()."""
    return _together(module, _keras_variables_can_be_called, _keras_takes_lr)


def _keras_metrics_take_old_words(module: Any) -> _Undo:
    """Scripts for Keras 2 call metric.reset_states()."""
    module.Metric.reset_states = lambda self: self.reset_state()
    return lambda: delattr(module.Metric, "reset_states")


def _ddp_ignores_device_ids_on_cpu(module: Any) -> _Undo:
    """Transformers 4.20 to 5.23 wraps with device_ids=[local rank], which torch rejects for a CPU module."""
    ddp = module.DistributedDataParallel
    plain = ddp.__init__

    @functools.wraps(plain)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            args = (*(None for _ in args[:2]), *args[2:])
            kwargs.update(dict.fromkeys({"device_ids", "output_device"} & kwargs.keys()))
        plain(self, module, *args, **kwargs)

    ddp.__init__ = init
    return lambda: setattr(ddp, "__init__", plain)


def _accelerate_computes_on_cpu(module: Any) -> _Undo:
    """Accelerate 1.15 computes the local rank modulo the number of GPUs, which may be zero."""
    import torch

    name = "ACCELERATE_TORCH_DEVICE"
    if torch.cuda.is_available() or name in os.environ:
        return lambda: None
    os.environ[name] = "cpu"

    def undo() -> None:
        os.environ.pop(name, None)

    return undo


def _accelerate_takes_smddp_on_cpu(module: Any) -> _Undo:
    """Accelerate uses gloo for ranks told to use the CPU, and lets ranks that find no GPU train alone."""
    import torch.distributed as dist

    plain = module.PartialState._prepare_backend
    kind = module.DistributedType

    @functools.wraps(plain)
    def prepare(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None) -> Any:
        chosen = plain(self, cpu, sagemaker_dp, backend)
        is_named = backend == "smddp" and "LOCAL_RANK" in os.environ
        if backend == "smddp" and not is_named and not dist.is_initialized():
            # Without LOCAL_RANK, Accelerate starts no group, and fails later when it asks for the size.
            raise ValueError(
                "[smdp] Accelerate: the backend is 'smddp' and LOCAL_RANK is not set, so no launcher has"
                " started this process; start the script with smdp run, torchrun or mpirun."
            )
        # A script that names another backend, or has already started a group, keeps its choice.
        is_wanted = is_named or (backend is None and is_data_parallel())
        if not is_wanted or chosen[1] not in (kind.MULTI_CPU, kind.NO):
            return chosen
        return dist.get_backend() if dist.is_initialized() else "smddp", kind.MULTI_CPU

    module.PartialState._prepare_backend = prepare
    return lambda: setattr(module.PartialState, "_prepare_backend", plain)


def _accelerate_on_cpu(module: Any) -> _Undo:
    """Accelerate's code for SMDDP assumes GPUs, and without them it chooses another backend."""
    return _together(module, _accelerate_computes_on_cpu, _accelerate_takes_smddp_on_cpu)


def _ranks_wait_for_the_checkpoint(module: Any) -> _Undo:
    """In SMDDP jobs, ranks of transformers 5.23 look for the best checkpoint before it is written."""
    import torch.distributed

    plain = module.Trainer.save_model

    @functools.wraps(plain)
    def save_model(self: Any, output_dir: Any = None, _internal_call: bool = False) -> None:
        plain(self, output_dir, _internal_call)
        if _internal_call and self.args.parallel_mode.name == "SAGEMAKER_DATA_PARALLEL":
            torch.distributed.barrier()

    module.Trainer.save_model = save_model
    return lambda: setattr(module.Trainer, "save_model", plain)


def _accelerate_wraps_the_model(module: Any) -> _Undo:
    """In SMDDP jobs the Trainer wraps the model itself, without autocast, the compiler or ddp_* options."""
    if int(version("transformers").partition(".")[0]) < 5:
        return lambda: None  # the function itself passes ddp_* arguments to Accelerate, or does not wrap
    plain = module.Trainer._wrap_model

    @functools.wraps(plain)
    def wrap(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        is_left = training and self.args.parallel_mode.name == "SAGEMAKER_DATA_PARALLEL"
        if is_left and vars(model).pop("_is_accelerate_prepared", False):
            # The model was prepared for evaluation. Accelerate would not wrap it again, and each rank would
            # train alone.
            self.accelerator.unwrap_model(model, keep_fp32_wrapper=False, keep_torch_compile=False)
        return plain(self, model, training=training and not is_left, dataloader=dataloader)

    module.Trainer._wrap_model = wrap
    return lambda: setattr(module.Trainer, "_wrap_model", plain)


def _trainer_on_paths_of_sagemaker(module: Any) -> _Undo:
    """The Trainer's code for SageMaker's libraries lacks a barrier, an optimizer, or autocast."""
    return _together(
        module, trainer_makes_an_optimizer, _ranks_wait_for_the_checkpoint, _accelerate_wraps_the_model
    )


def _together(module: Any, *changes: Callable[[Any], _Undo]) -> _Undo:
    undo = [change(module) for change in changes]

    def undo_all() -> None:
        for one in reversed(undo):
            one()

    return undo_all


# For each module: the change, its package, and the first major version of the package that is left unchanged.
_BRIDGES: dict[str, tuple[Callable[[Any], _Undo], str, int]] = {
    "torch": (_register_smddp, "torch", 3),
    "torch.nn.parallel.distributed": (_ddp_ignores_device_ids_on_cpu, "torch", 3),
    "accelerate.state": (_accelerate_on_cpu, "accelerate", 2),
    "accelerate.accelerator": (accelerate_counts_replicas, "accelerate", 2),
    "accelerate.optimizer": (accelerated_optimizer_saves_its_part, "accelerate", 2),
    "transformers.training_args": (trainer_computes_on_cpu, "transformers", 6),
    "transformers.trainer": (_trainer_on_paths_of_sagemaker, "transformers", 6),
    "keras.src.trainers.trainer": (_keras_compile_takes_old_words, "keras", 4),
    "keras.src.optimizers.base_optimizer": (_keras_optimizers_take_old_words, "keras", 4),
    "keras.src.metrics.metric": (_keras_metrics_take_old_words, "keras", 4),
}


class Bridges(MetaPathFinder):
    """Applies a bridge right after its module has been imported."""

    def __init__(self) -> None:
        self._undo: dict[str, _Undo] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the module through the other finders and wraps its loader."""
        if fullname not in _BRIDGES or fullname in self._undo:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Then(spec.loader, functools.partial(self._apply, fullname))
                return spec
        return None

    def apply_to_what_is_imported(self) -> None:
        """Applies the bridges of packages that were imported before install()."""
        for name in _BRIDGES:
            if name in sys.modules:
                self._apply(name, sys.modules[name])

    def take_back(self) -> None:
        """Undoes all bridges."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()

    def _apply(self, name: str, module: ModuleType) -> None:
        if name in self._undo:
            return
        bridge, package, below = _BRIDGES[name]
        major = int(version(package).partition(".")[0])
        if major >= below:
            text = (
                f"[smdp] smdp.compat has not been tested with {package} {major} and leaves it unchanged."
                f" The missing change: {bridge.__doc__}"
            )
            warnings.warn(text, stacklevel=2)
            return
        self._undo[name] = bridge(module)


class _Then(Loader):
    """A loader that calls a function after the module is loaded."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
