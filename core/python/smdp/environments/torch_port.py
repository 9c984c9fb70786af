"""The ports of two stores that may run side by side: torch's at MASTER_PORT, smdp's at the next port."""

from __future__ import annotations

import socket


def smdp_port(torch_port: int) -> int:
    """Returns the port of smdp's store, given MASTER_PORT."""
    return torch_port + 1


def torch_port(smdp_port: int) -> int:
    """Returns MASTER_PORT, given the port of smdp's store; any free port if that is 0."""
    return smdp_port - 1 if smdp_port > 1 else free_port()


def free_port() -> int:
    """Returns a port that is free at the moment; for a world of one process only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
