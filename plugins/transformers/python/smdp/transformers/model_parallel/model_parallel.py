"""The plugin that splits a model into stages on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from smdp import pipeline as schedules
from smdp.accelerate.memory_options import MemoryOptions
from smdp.accelerate.wrapped_models import PreparedModels
from smdp.torch import PipelinedModule, ShardedOptimizer
from smdp.torch.plugin_support import SplitOptions, Wording, asked_sharding, check_same_batch, pipeline_of
from smdp.transformers.data_parallel import DataParallel, asked_precision, is_checkpointed
from smdp.transformers.model_parallel import checkpoint_files, steps
from smdp.transformers.model_parallel.accelerator import share_batches, take_over
from smdp.transformers.model_parallel.arguments import check_arguments, check_batch
from smdp.transformers.model_parallel.example_batch import example_batch, kept_random_state
from smdp.transformers.model_parallel.optimizer import make_optimizer
from smdp.transformers.model_parallel.step_times import StepTimes
from smdp.transformers.model_parallel.whole_sizes import keep_number_of_parameters
from smdp.transformers.plugin import Plugin, described_by
from smdp.transformers.started_processes import check_started

# Batches are compared now and then, which is enough because diverged random generators stay diverged.
_COMPARED_EVERY = 16
# Arguments that DataParallel has as well.
_OWN = ("shard_optimizer", "recompute", "offload", "precision")

_TRAINER = Wording(
    split="the Trainer",
    compiled="TrainingArguments(torch_compile=True) compiles its modules",
    traced="Give ModelParallel() example_inputs",
    step="leave it to train(), evaluate() and predict() of the Trainer",
    backward="the loss that the Trainer computes",
)


class ModelParallel(Plugin):
    """Splits the model over ranks with `smdp.torch.pipeline`. Each rank keeps only its own stages.

    A job of k x `stages` x `tensor` processes has k replicas of the pipeline, whose gradients are averaged.
    `per_device_train_batch_size` is the batch of one replica. With one stage and one process, the plugin has
    no effect.

    Args:
        stages: The number of ranks of one pipeline.
        microbatches: The number of microbatches into which a replica's batch is divided.
        schedule: The name of a schedule of `smdp.pipeline.generate`.
        tensor: The number of ranks over which the layers of each stage are divided; see
            `smdp.torch.tensor_parallel()`.
        virtual_stages: The number of virtual stages per rank. Default: the schedule's usual number.
        active_microbatches: The most microbatches in flight under "smp_interleaved". Default: stages + 2.
        pins: Virtual stages of modules, by module name. Other modules are placed where the step is shortest.
        memory_cap: The limit in bytes per rank for parameters, gradients, Adam's state and activations; 0 for
            no limit.
        seed: The seed of dropout. Default: rank 0's `torch.initial_seed()` when the model is split.
        example_inputs: A batch to measure the modules with. Default: the first rows of the training data. For
            a stream that is not from Hugging Face's datasets there is no default, and modules are weighed by
            their parameters.
        preemption: Whether to save a checkpoint on SIGTERM. When one rank receives the signal, all ranks save
            after the same step and exit with code 75.
        shard_optimizer: Whether replicas keep the optimizer's state once for all of them (True), once per
            host ("host"), as smdp chooses ("auto"), or on every rank (False). A mapping
            has arguments of `smdp.torch.ShardedOptimizer`: `scope`, `share_parameters`, `offload`.
        recompute: Which activations backward computes again; a policy of
            `smdp.torch.checkpoint_activations()`. Default: none.
        offload: Where activations wait for backward, "disk:/DIRECTORY" or "host"; see
            `smdp.torch.offload_activations()`. Default: in memory.
        precision: "bf16" or "fp16": parameters and gradients have 16 bits, the optimizer keeps masters; see
            `smdp.torch.MixedPrecision`. Default: the dtype of the model.

    Raises:
        ValueError: An argument is not valid.
        TypeError: An argument has the wrong type.
    """

    places_model = True

    def __init__(
        self,
        stages: int = 2,
        microbatches: int = 8,
        schedule: str = "1f1b",
        *,
        tensor: int = 1,
        virtual_stages: int | None = None,
        active_microbatches: int | None = None,
        pins: Mapping[str, int] | None = None,
        memory_cap: float = 0.0,
        seed: int | None = None,
        example_inputs: Any = None,
        preemption: bool = True,
        shard_optimizer: bool | str | Mapping[str, Any] = False,
        recompute: Any = None,
        offload: str | None = None,
        precision: str | None = None,
    ) -> None:
        # Raises if an argument is not valid.
        info = schedules.schedule_info(schedule)
        schedules.generate(
            schedule,
            stages=stages,
            microbatches=microbatches,
            virtual_stages=virtual_stages or info.virtual_stages or info.usual_virtual_stages,
            active_microbatches=active_microbatches,
        )
        self._options: dict[str, Any] = {
            "stages": stages,
            "tensor": tensor,
            "microbatches": microbatches,
            "schedule": schedule,
            "virtual_stages": virtual_stages,
            "active_microbatches": active_microbatches,
            "memory_cap": memory_cap,
            "seed": seed,
        }
        self._pins = pins
        self._shard_optimizer = shard_optimizer
        self._sharding = asked_sharding("ModelParallel", shard_optimizer)
        self._memory = MemoryOptions("ModelParallel", recompute, offload, precision)
        self.preemption = preemption
        self._stages = stages
        self._tensor = tensor
        self._microbatches = microbatches
        self._example = example_inputs
        self._pipe: PipelinedModule | None = None
        self._is_alone = False
        self._models = PreparedModels()
        self._batches = 0
        self._unread: Callable[[], None] | None = None
        self._times = StepTimes()

    def described(self) -> str:
        """Returns the plugin with its arguments except `example_inputs`."""
        others = {
            "pins": self._pins,
            "preemption": self.preemption,
            "shard_optimizer": self._shard_optimizer,
            **self._memory.given,
        }
        return described_by(self, {**self._options, **others})

    @property
    def pipe(self) -> PipelinedModule | None:
        """The pipelined model, with `split` and `timeline`, or None before training or evaluation starts."""
        return self._pipe

    @property
    def ranks_per_batch(self) -> int:  # type: ignore[override]
        """The number of ranks of a pipeline, which work on one batch."""
        return self._stages * self._tensor

    def conflict(self, other: Plugin) -> str | None:
        """Returns a reason for a second ModelParallel, or a DataParallel with options."""
        if isinstance(other, ModelParallel):
            return "there are two ModelParallel plugins, but a model can be split only once"
        if isinstance(other, DataParallel) and other.changed:
            moved = [name for name in other.changed if name in _OWN]
            left = [name for name in other.changed if name not in (*_OWN, "shard_parameters")]
            reasons = []
            if moved:
                names = ", ".join(moved)
                reasons.append(
                    f"stages and their optimizer are those of ModelParallel; pass {names} to ModelParallel"
                )
            if "shard_parameters" in other.changed:
                reasons.append(
                    "each rank of a pipeline keeps the parameters of its own stages only; pass"
                    " shard_optimizer to ModelParallel in place of shard_parameters"
                )
            if left:
                reasons.append(
                    f"replicas of a pipeline do not support {', '.join(left)} when they average their"
                    " gradients; pass DataParallel() without arguments"
                )
            return "; ".join(reasons)
        return None

    def set_up(self, args: TrainingArguments) -> None:
        """Checks that the training arguments are supported.

        Raises:
            ValueError: An argument is not supported.
        """
        check_started("ModelParallel", args)
        check_arguments(args, self._stages, self._tensor)
        self._memory.check(asked_precision(args), is_checkpointed(args))
        self._is_alone = args.world_size == 1

    def change_accelerator(self, trainer: Trainer) -> None:
        """Distributes batches over replicas instead of ranks."""
        if not self._is_alone:
            share_batches(trainer, self._stages, self._tensor)

    def place_model(self, trainer: Trainer, loader: DataLoader[Any] | None) -> None:
        """Splits the model unless it is already split.

        Raises:
            ValueError: The model cannot be split with these arguments.
        """
        if self._is_alone:
            return
        if self._pipe is None or self._pipe.module is not trainer.model:
            example = self._example
            with kept_random_state():
                if loader is None and trainer.train_dataset is not None:
                    loader = trainer.get_train_dataloader()
                if example is None and loader is not None:
                    size = max(1, trainer.args.per_device_train_batch_size // self._microbatches)
                    example = example_batch(trainer, loader, size * self._microbatches)
                options = SplitOptions(
                    device=trainer.args.device,
                    is_compiled=trainer.args.torch_compile,
                    wording=_TRAINER,
                    recompute=self._memory.recompute,
                    offload=self._memory.offload,
                    **self._options,
                )
                self._memory.lower(trainer.model)
                if self._tensor > 1:
                    keep_number_of_parameters(trainer.model)
                self._pipe = pipeline_of(trainer.model, options, example, pins=self._pins)
            self._batches = 0
            take_over(trainer, self._pipe)
        trainer.model_wrapped = self._pipe
        if self._unread is not None:
            unread, self._unread = self._unread, None
            unread()

    def make_optimizer(self, trainer: Trainer, make: Callable[[], Optimizer]) -> Optimizer:
        """Creates the Trainer's optimizer for this rank's parameters, or removes others from the user's.

        Raises:
            ValueError: The batch size is not divisible by the number of microbatches, or the user's optimizer
                has no parameter of the model.
        """
        if self._pipe is None:
            return make()
        check_batch(trainer.args, self._microbatches)
        return make_optimizer(trainer, self._pipe, make)

    def wrap_optimizer(
        self, trainer: Trainer, prepare: Callable[..., Optimizer], optimizer: Optimizer, **options: Any
    ) -> Optimizer:
        """Shards the optimizer's state, and keeps masters of 16-bit parameters, if arguments ask for it."""
        pipe, memory = self._pipe, self._memory
        if self._is_alone:
            return memory.prepare(trainer.accelerator, prepare, optimizer, self._models, None, **options)
        is_plain = self._sharding is None and memory.dtype is None
        if pipe is None or is_plain or getattr(optimizer, "_is_accelerate_prepared", False):
            return prepare(optimizer, **options)
        changed = optimizer
        if self._sharding is not None:
            changed = ShardedOptimizer(optimizer, pipe, master_dtype=memory.master_dtype, **self._sharding)
        return memory.prepare_changed(trainer.accelerator, prepare, changed, pipe)

    def run_step(
        self, trainer: Trainer, run: Callable[..., Tensor], model: nn.Module, inputs: Any, items: Any
    ) -> Tensor:
        """Runs the Trainer's step for each microbatch, in the order of the schedule."""
        if self._pipe is None:
            return run(model, inputs, items)
        self._compare(self._pipe, inputs)
        loss = steps.train_step(trainer, self._pipe, run, inputs, items)
        self._times.add(self._pipe)
        return loss

    def predict_step(
        self, trainer: Trainer, run: Callable[..., Any], model: nn.Module, inputs: Any, loss_only: bool
    ) -> Any:
        """Runs the Trainer's prediction for each microbatch."""
        if self._pipe is None:
            return run(model, inputs, loss_only)
        self._compare(self._pipe, inputs)
        return steps.predict_step(trainer, self._pipe, run, inputs, loss_only)

    def save_model(self, trainer: Trainer, save: Callable[..., None], folder: str) -> None:
        """Writes the model in the format of from_pretrained(). Each stage writes its own part."""
        if self._pipe is None:
            save()
        else:
            checkpoint_files.save_model(trainer, self._pipe, save, folder)

    def load_model(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Reads this rank's weights now, or after the model has been split."""
        if self._is_alone:
            load()
            return

        def read() -> None:
            assert self._pipe is not None
            checkpoint_files.load_model(trainer, self._pipe, load, folder)

        if self._pipe is None or self._pipe.module is not trainer.model:
            self._unread = read
        else:
            read()

    def save_state(self, trainer: Trainer, save: Callable[[], None], folder: str) -> None:
        """Writes the optimizer's state by parameter name."""
        if self._pipe is None:
            save()
        else:
            checkpoint_files.save_state(trainer, self._pipe, folder)

    def load_state(self, trainer: Trainer, load: Callable[[], None], folder: str) -> None:
        """Reads the optimizer's state for the stages of this rank."""
        if self._pipe is None:
            load()
        else:
            checkpoint_files.load_state(trainer, self._pipe, folder)

    def load_random_state(self, trainer: Trainer, load: Callable[[str], None], folder: str) -> None:
        """Restores the same random state on all ranks of a pipeline."""
        if self._pipe is None:
            load(folder)
        else:
            checkpoint_files.load_random_state(self._pipe, load, folder)

    def _compare(self, pipe: PipelinedModule, inputs: Any) -> None:
        if self._batches % _COMPARED_EVERY == 0:
            check_same_batch(pipe.mesh.group("mp"), dict(inputs))
        self._batches += 1

    def report(self) -> dict[str, float]:
        """Returns milliseconds per batch on this rank since the last call."""
        times, self._times = self._times, StepTimes()
        return times.means()
