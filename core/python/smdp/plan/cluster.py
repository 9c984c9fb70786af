"""The machines a plan is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from smdp._shown import shown

_MOST_RANKS = 2**17


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Equal hosts with equal ranks, one rank per device.

    Attributes:
        hosts: Number of them.
        ranks_per_host: Devices of a host.
        device_memory: Bytes of a device.
        link: Bytes per second of a host's network, each way, that its ranks share.
        interconnect: Bytes per second of a rank to others of its host, each way.
        flops: Floating-point operations per second that a device can do in the type of training.
        efficiency: The part of `flops` that matrix products reach; 0 to 1.
        margin: The part of `device_memory` that an estimate may take; 0 to 1.
        latency: Seconds of one message.

    Raises:
        ValueError: A value is wrong; the message names it and what is allowed.
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
            elif not (0 < value <= 1e30 or (field.name == "latency" and value == 0)):
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
        """All devices."""
        return self.hosts * self.ranks_per_host

    @property
    def usable_memory(self) -> float:
        """Bytes that an estimate may take."""
        return self.device_memory * self.margin
