"""The contenders of `smdp bench`. A library is imported only if it takes part."""

from __future__ import annotations

from smdp.cli.bench.peers.base import Peer, Work

__all__ = ["Peer", "Work", "make_peer"]


def make_peer(name: str, rank: int, ranks: int) -> Peer:
    """Returns the contender with this name, set up for this rank.

    Raises:
        KeyError: There is no contender with this name.
    """
    if name == "smdp-numpy":
        from smdp.cli.bench.peers.smdp_numpy import SmdpNumpy

        return SmdpNumpy(rank, ranks)
    if name == "smdp-torch":
        from smdp.cli.bench.peers.smdp_torch import SmdpTorch

        return SmdpTorch(rank, ranks)
    if name in ("gloo", "gloo4"):
        from smdp.cli.bench.peers.gloo import Gloo

        return Gloo(rank, ranks, contexts=4 if name == "gloo4" else 1)
    if name == "openmpi":
        from smdp.cli.bench.peers.openmpi import OpenMpi

        return OpenMpi(rank, ranks)
    raise KeyError(f"unknown contender {name!r}; allowed: smdp-numpy, smdp-torch, gloo, gloo4, openmpi")
