"""The contenders of `smdp bench`; each library is imported only when it takes part."""

from __future__ import annotations

from smdp.cli.bench.peers.base import Peer, Work

__all__ = ["Peer", "Work", "make_peer"]


def make_peer(name: str, rank: int, ranks: int) -> Peer:
    """Set a contender up.

    Raises:
        KeyError: There is none of this name.
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
    raise KeyError(f"no contender {name!r}; there are smdp-numpy, smdp-torch, gloo, gloo4, openmpi")
