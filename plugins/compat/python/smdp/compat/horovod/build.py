"""Horovod's questions about its build. smdp needs none of these libraries."""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """Returns True: a script may use MPI alongside smdp."""
    return True


def mpi_enabled() -> bool:
    """Returns False."""
    return False


def mpi_built() -> bool:
    """Returns False."""
    return False


def gloo_enabled() -> bool:
    """Returns True: scripts call this to learn that MPI is not needed."""
    return True


def gloo_built() -> bool:
    """Returns True; see gloo_enabled()."""
    return True


def nccl_built() -> int:
    """Returns 0."""
    return 0


def ddl_built() -> bool:
    """Returns False."""
    return False


def ccl_built() -> bool:
    """Returns False."""
    return False


def cuda_built() -> bool:
    """Returns False."""
    return False


def rocm_built() -> bool:
    """Returns False."""
    return False
