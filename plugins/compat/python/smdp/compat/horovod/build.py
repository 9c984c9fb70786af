"""What Horovod says of how it was built: smdp needs none of these libraries."""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """True: MPI may be used beside it."""
    return True


def mpi_enabled() -> bool:
    """False."""
    return False


def mpi_built() -> bool:
    """False."""
    return False


def gloo_enabled() -> bool:
    """True: scripts ask this to know that no MPI is needed."""
    return True


def gloo_built() -> bool:
    """True, see gloo_enabled()."""
    return True


def nccl_built() -> int:
    """0."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
