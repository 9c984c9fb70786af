"""The machines that a plan is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from smdp._shown import shown

_MOST_RANKS = 2**17
_MAY_BE_ZERO = ("latency", "cores_per_host", "flops_fp32", "memory_bandwidth", "layer_overhead")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Identical hosts with identical devices, one rank per device, or with ranks of one thread on CPU cores.

    Attributes:
        hosts: Number of hosts.
        ranks_per_host: Number of devices per host.
        device_memory: Bytes of memory per device.
        link: Bytes per second of a host's network in each direction, shared by its ranks.
        interconnect: Bytes per second of a rank to the others of its host in each direction.
        flops: Peak floating-point operations per second of a device, in the data type of training.
        efficiency: The fraction of `flops` that matrix products reach, 0 to 1.
        margin: The fraction of `device_memory` that an estimate may use, 0 to 1.
        latency: Seconds of one message or collective besides those of its bytes.
        cores_per_host: Cores that the ranks of a host share; `flops`, `device_memory` and `memory_bandwidth`
            are then those of one rank on a core. 0: each rank has a device of its own.
        flops_fp32: Peak floating-point operations per second in fp32, if they differ from `flops`; 0: they
            do not.
        memory_bandwidth: Bytes of parameters, gradients and optimizer states that a rank updates per second.
            0: updates take no time.
        layer_overhead: Seconds in which a processor starts the operators of a layer's forward and backward,
            once per microbatch, in a model that is not divided. A device works meanwhile, a core does not.
        disk: Bytes per second of a host's disk, or between its devices and its memory, in each direction.

    Raises:
        ValueError: A value is invalid. The message names it and what is allowed.
    """

    hosts: int = 1
    ranks_per_host: int = 1
    device_memory: float = 40e9
    link: float = 400e9 / 8
    interconnect: float = 300e9
    flops: float = 312e12
    efficiency: float = 0.5
    margin: float = 0.8
    latency: float = 10e-6
    cores_per_host: float = 0
    flops_fp32: float = 0
    memory_bandwidth: float = 0
    layer_overhead: float = 500e-6
    disk: float = 1e9

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            text = shown(value, 120)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"[smdp] {field.name} = {text} is not valid; allowed: a number")
            if field.name in ("hosts", "ranks_per_host"):
                if not isinstance(value, int) or not 1 <= value <= 2**16:
                    raise ValueError(
                        f"[smdp] {field.name} = {text} is not valid; allowed: an integer from 1 to 65536"
                    )
            elif field.name in ("efficiency", "margin"):
                if not 0 < value <= 1:
                    raise ValueError(f"[smdp] {field.name} = {text} is not valid; allowed: above 0, up to 1")
            elif not (0 < value <= 1e30 or (field.name in _MAY_BE_ZERO and value == 0)):
                raise ValueError(
                    f"[smdp] {field.name} = {text} is not valid; allowed: a number above 0, up to 1e30"
                )

        if self.hosts * self.ranks_per_host > _MOST_RANKS:
            raise ValueError(
                f"[smdp] hosts x ranks_per_host = {self.hosts} x {self.ranks_per_host} is not valid; allowed:"
                f" at most {_MOST_RANKS} ranks"
            )

    @property
    def ranks(self) -> int:
        """The number of devices."""
        return self.hosts * self.ranks_per_host

    @property
    def usable_memory(self) -> float:
        """Bytes per device that an estimate may use."""
        return self.device_memory * self.margin

    @property
    def is_cpu(self) -> bool:
        """Whether ranks run on cores of the host instead of devices of their own."""
        return self.cores_per_host > 0

    @property
    def slowdown(self) -> float:
        """How many times longer work takes that all ranks of a host do at the same time, at least 1."""
        return max(1.0, self.ranks_per_host / self.cores_per_host) if self.is_cpu else 1.0

    def speed(self, precision: str) -> float:
        """Returns the floating-point operations per second that matrix products reach with one rank's device.

        Args:
            precision: Precision as in `smdp.memory.state_bytes`.
        """
        peak = self.flops_fp32 if precision == "fp32" and self.flops_fp32 else self.flops
        return peak * self.efficiency
