"""Small changes to released packages for jobs of SageMaker Model Parallel, where several ranks share a model.

They have no effect in other jobs. Like all bridges, they are applied when their package is imported.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

_Undo = Callable[[], None]


def trainer_computes_on_cpu(module: Any) -> _Undo:
    """In jobs of SageMaker Model Parallel, TrainingArguments assumes GPUs."""
    import torch

    cached = vars(module.TrainingArguments)["_setup_devices"]  # a functools.cached_property
    plain = cached.func

    def set_up(self: Any) -> Any:
        if torch.cuda.is_available() or not _is_model_parallel():
            return plain(self)
        from smdp.torch import model_parallel as smp

        module.AcceleratorState._reset_state(reset_partial_state=True)
        self.distributed_state = None
        self._n_gpu = 1
        self.local_rank = smp.local_rank()
        return torch.device("cpu")

    cached.func = set_up
    return lambda: setattr(cached, "func", plain)


def accelerate_counts_replicas(module: Any) -> _Undo:
    """Accelerate treats every rank as a replica, and would give the stages of one model different data."""
    loader, gather = module.prepare_data_loader, module.gather
    clip = module.Accelerator.clip_grad_norm_

    @functools.wraps(loader)
    def prepare_data_loader(*args: Any, **kwargs: Any) -> Any:
        if _is_model_parallel():
            from smdp.torch import model_parallel as smp

            kwargs |= {"num_processes": smp.dp_size(), "process_index": smp.dp_rank()}
            if smp.state.cfg.prescaled_batch:
                kwargs |= {"num_processes": smp.rdp_size(), "process_index": smp.rdp_rank()}
        return loader(*args, **kwargs)

    @functools.wraps(gather)
    def gathered(tensor: Any) -> Any:
        if not _is_model_parallel():
            return gather(tensor)
        import torch

        from smdp.torch import model_parallel as smp
        from smdp.torch.plugin_support import map_tensors

        group = smp.RDP_GROUP if smp.state.cfg.prescaled_batch else smp.DP_GROUP

        def over_replicas(part: Any) -> Any:
            return torch.cat(
                [each.reshape(-1) if each.dim() == 0 else each for each in smp.allgather(part, group)]
            )

        return map_tensors(over_replicas, tensor)

    @functools.wraps(clip)
    def clip_grad_norm_(self: Any, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        if not _is_model_parallel():
            return clip(self, parameters, max_norm, norm_type)
        from smdp.torch import clip_grad_norm_ as over_all_stages

        self.unscale_gradients()
        return over_all_stages(list(parameters), max_norm, norm_type)

    module.prepare_data_loader, module.gather = prepare_data_loader, gathered
    module.Accelerator.clip_grad_norm_ = clip_grad_norm_

    def undo() -> None:
        module.prepare_data_loader, module.gather = loader, gather
        module.Accelerator.clip_grad_norm_ = clip

    return undo


def accelerated_optimizer_saves_its_part(module: Any) -> _Undo:
    """The Trainer saves each rank's part of the optimizer, but Accelerate has wrapped the optimizer."""
    names = ("local_state_dict", "clip_master_grads")

    def passed_on(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(self.optimizer, name)(*args, **kwargs)

    for name in names:
        setattr(module.AcceleratedOptimizer, name, passed_on(name))

    def undo() -> None:
        for name in names:
            delattr(module.AcceleratedOptimizer, name)

    return undo


def trainer_makes_an_optimizer(module: Any) -> _Undo:
    """From transformers 5.0 on, the Trainer cannot train in jobs of SageMaker Model Parallel.

    Before, it makes the optimizer of the model that it has not wrapped yet, whose modules tensor parallelism
    has replaced.
    """
    if int(version("transformers").partition(".")[0]) < 5:
        return _optimizer_of_wrapped_model(module)
    plain = module.Trainer.train

    @functools.wraps(plain)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_model_parallel():
            raise RuntimeError(
                f"[smdp] transformers {version('transformers')} creates no optimizer for SageMaker Model"
                " Parallel, so this Trainer cannot train; use smdp.transformers.Trainer(...,"
                " plugins=[ModelParallel(stages=..., microbatches=...)]) without SM_HP_MP_PARAMETERS, or"
                " transformers 4.57"
            )
        return plain(self, *args, **kwargs)

    module.Trainer.train = train
    return lambda: setattr(module.Trainer, "train", plain)


def _optimizer_of_wrapped_model(module: Any) -> _Undo:
    plain = module.Trainer._wrap_model

    @functools.wraps(plain)
    def _wrap_model(self: Any, model: Any, training: bool = True, **kwargs: Any) -> Any:
        found = plain(self, model, training, **kwargs)
        if training and _is_model_parallel():
            self.model_wrapped = found
        return found

    module.Trainer._wrap_model = _wrap_model
    return lambda: setattr(module.Trainer, "_wrap_model", plain)


def _is_model_parallel() -> bool:
    if "partitions" not in os.environ.get("SM_HP_MP_PARAMETERS", ""):
        return False
    from smdp.torch import model_parallel as smp

    return smp.is_initialized()
