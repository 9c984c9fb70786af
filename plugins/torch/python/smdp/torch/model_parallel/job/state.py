"""The state of a process's job: one object, `smp.state`."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from smdp.placement import Placement
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.pipelining.transfers.transfers import Channel, Lane
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

Translation: TypeAlias = Callable[..., dict[str, Any]]


@dataclass
class ModuleRegister:
    """Information about kinds of modules.

    Attributes:
        translate_functions: Pairs of functions that translate a state dict from SMP's names to Hugging Face's
            names and back, of the models that tensor parallelism has replaced.
    """

    translate_functions: list[tuple[Translation, Translation]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """The job that init() has started.

    Attributes:
        configuration: The checked configuration.
        mesh: The ranks and groups of the job.
        local_rank: The rank of this process on its host.
        local_size: Number of the job's ranks on this host.
        owns_default_group: Whether init() initialized torch.distributed.
        calls: The last collective calls of this rank within its model, with their numbers; see
            collective_calls.py.
        number: The number of jobs that this process has started before; the same on all ranks.
    """

    configuration: Configuration
    mesh: ParallelMesh
    local_rank: int
    local_size: int
    owns_default_group: bool
    calls: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=8))
    number: int = field(default_factory=itertools.count().__next__)

    @functools.cached_property
    def axis(self) -> TensorAxis:
        """The ranks of this rank's tensor-parallel group, as distributed modules see them."""
        return TensorAxis(self.mesh)

    def messages(self) -> Channel:
        """Returns a channel for objects between any two ranks, to be used for one call."""
        return Channel(self.mesh.group("world"), Lane.OBJECTS)

    @property
    def store(self) -> Any:
        """The store through which the ranks of the job found each other."""
        return self.mesh.group("world").get_group_store()


class State:
    """The state of the process.

    Attributes:
        job: The job from init() to shutdown(), otherwise None.
        model: The DistributedModel, or None.
        optimizer: The last DistributedOptimizer, or None.
        uncut_optimizers: The optimizers created before the model was cut; empty afterwards.
        module_manager: Information about kinds of modules.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Resets the state."""
        self.job: Job | None = None
        self.model: Any = None
        self.optimizer: Any = None
        self.uncut_optimizers: list[Any] = []
        self.module_manager = ModuleRegister()

    @property
    def running(self) -> Job:
        """The job.

        Raises:
            ValueError: init() has not been called yet.
        """
        if self.job is None:
            raise ValueError("[smdp] smp.init() has not been called in this process; call it first")
        return self.job

    def check_running(self) -> None:
        """Checks that init() has been called.

        Raises:
            ValueError: See `running`.
        """
        _ = self.running

    @property
    def cfg(self) -> Configuration:
        """The configuration, with one attribute per key."""
        return self.running.configuration

    @property
    def placement(self) -> Placement:
        """The assignment of stages and replicas to ranks."""
        return self.running.mesh.placement


state = State()
"""The state of this process."""
