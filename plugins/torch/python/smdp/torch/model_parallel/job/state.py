"""What a process knows of its job: one object, `smp.state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from smdp.placement import Placement
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.pipelining.transfers.transfers import Channel, Lane

Translation: TypeAlias = Callable[..., dict[str, Any]]


@dataclass
class ModuleRegister:
    """What is known of kinds of modules.

    Attributes:
        translate_functions: Pairs, from SMP's names of a state dict to those of Hugging Face and back. Empty:
            without tensor parallelism modules keep their names.
    """

    translate_functions: list[tuple[Translation, Translation]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """What init() found and made.

    Attributes:
        configuration: Checked.
        mesh: Ranks and groups.
        local_rank: On this host.
        local_size: Ranks of the job on this host.
        owns_default_group: init() started torch.distributed.
        calls: The last calls that this rank made together with the others of its model, with their numbers;
            see collective_calls.py.
    """

    configuration: Configuration
    mesh: ParallelMesh
    local_rank: int
    local_size: int
    owns_default_group: bool
    calls: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=8))

    def messages(self) -> Channel:
        """Returns a channel for objects between any two ranks, for one call."""
        return Channel(self.mesh.group("world"), Lane.OBJECTS)

    @property
    def store(self) -> Any:
        """The store by which the ranks of the job found each other."""
        return self.mesh.group("world").get_group_store()


class State:
    """State of the process.

    Attributes:
        job: From init() to shutdown().
        model: The DistributedModel, once there is one.
        optimizer: The last DistributedOptimizer, once there is one.
        uncut_optimizers: All that have been made before the model was cut, until it is.
        module_manager: Kinds of modules.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.job: Job | None = None
        self.model: Any = None
        self.optimizer: Any = None
        self.uncut_optimizers: list[Any] = []
        self.module_manager = ModuleRegister()

    @property
    def running(self) -> Job:
        """The job.

        Raises:
            ValueError: There is none yet.
        """
        if self.job is None:
            raise ValueError("[smdp] smp.init() has not been called in this process; call it first")
        return self.job

    def check_running(self) -> None:
        """Refuse to go on where there is no job yet.

        Raises:
            ValueError: See `running`.
        """
        _ = self.running

    @property
    def cfg(self) -> Configuration:
        """The configuration: an attribute for every key."""
        return self.running.configuration

    @property
    def placement(self) -> Placement:
        """Where stages and replicas lie on the ranks."""
        return self.running.mesh.placement


state = State()
"""The job of this process: there is one."""
