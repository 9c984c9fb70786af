"""Detects ranks started by Open MPI's mpirun."""

from __future__ import annotations

import re
from collections.abc import Mapping

from smdp import config
from smdp.environments.base import PLACEHOLDER, Environment, Launch, make_launch, read_ranks
from smdp.environments.master import of_launcher

# "prterun-node0-4711@1" has the host and process id of mpirun 5; "prte-..." is that of a persistent prte.
_NAMESPACE = re.compile(r"prte(?:run)?-(.+)-\d+@\d+")
# "3221946368.0;tcp://10.0.0.1,192.168.0.1:45679", or tcp6://[fd00::1,fd00::2]:45679
_HNP_ADDRESS = re.compile(r"tcp://([^,:;]+)|tcp6://\[([^,\];]+)")


class OpenMpi(Environment):
    """Open MPI's mpirun, which sets OMPI_COMM_WORLD_* but does not provide the address of rank 0.

    On one host, the address is not needed. On several hosts inside SLURM, it is the first host of the
    allocation. Otherwise, it is mpirun's own host, which mpirun 4 sets in OMPI_MCA_orte_hnp_uri and mpirun 5
    in PMIX_NAMESPACE; rank 0 runs there unless the host file excludes that host. In that case, rank 0's error
    asks for `mpirun -x SMDP_MASTER_ADDR=...`, because mpirun only passes on variables that it is told to.
    """

    name = "Open MPI"
    variables = (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_MCA_orte_hnp_uri",
        "PMIX_NAMESPACE",
    )
    master_hint = f"start with mpirun -x SMDP_MASTER_ADDR={PLACEHOLDER}"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether mpirun of Open MPI started this process."""
        return bool(config.read(environ, "OMPI_COMM_WORLD_RANK"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from OMPI_COMM_WORLD_*."""
        world = "OMPI_COMM_WORLD_"
        ranks = read_ranks(
            environ, world + "RANK", world + "SIZE", world + "LOCAL_RANK", world + "LOCAL_SIZE"
        )
        uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
        job = environ.get("PMIX_NAMESPACE", "") or uri.partition(";")[0]
        host = hnp_address(uri) or namespace_host(environ.get("PMIX_NAMESPACE", ""))
        return make_launch(environ, ranks, cls.name, master_addr=of_launcher(host, ranks, environ), job=job)


def hnp_address(uri: str) -> str:
    """Returns the first address in mpirun 4's contact string; empty if there is none.

    Example:
        >>> hnp_address("3221946368.0;tcp://10.0.0.1,192.168.0.1:45679")
        '10.0.0.1'
    """
    match = _HNP_ADDRESS.search(uri)
    return (match.group(1) or match.group(2)) if match else ""


def namespace_host(namespace: str) -> str:
    """Returns the name of mpirun 5's host; empty if the namespace does not contain it.

    Example:
        >>> namespace_host("prterun-node0-4711@1")
        'node0'
    """
    match = _NAMESPACE.fullmatch(namespace)
    return match.group(1) if match else ""
