"""`horovod.tensorflow`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import smdp
import smdp.tensorflow as sdp
from smdp.compat.horovod.build import ccl_built as ccl_built
from smdp.compat.horovod.build import cuda_built as cuda_built
from smdp.compat.horovod.build import ddl_built as ddl_built
from smdp.compat.horovod.build import gloo_built as gloo_built
from smdp.compat.horovod.build import gloo_enabled as gloo_enabled
from smdp.compat.horovod.build import mpi_built as mpi_built
from smdp.compat.horovod.build import mpi_enabled as mpi_enabled
from smdp.compat.horovod.build import mpi_threads_supported as mpi_threads_supported
from smdp.compat.horovod.build import nccl_built as nccl_built
from smdp.compat.horovod.build import rocm_built as rocm_built
from smdp.compat.horovod.common.util import gpu_available as gpu_available
from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.start import check_comm, sets_of
from smdp.compat.sagemaker.dataparallel.tensorflow import graph
from smdp.tensorflow import *  # noqa: F403
from smdp.tensorflow import allgather as allgather
from smdp.tensorflow import allgather_object as allgather_object
from smdp.tensorflow import broadcast_object as broadcast_object
from smdp.tensorflow import broadcast_variables as broadcast_variables
from smdp.tensorflow import reducescatter as reducescatter

BroadcastGlobalVariablesHook = graph.BroadcastGlobalVariablesHook
broadcast_global_variables = graph.broadcast_global_variables


def init(comm: Any = None, process_sets: Any = None) -> None:  # type: ignore[no-redef]
    """Initializes smdp. A second call does nothing.

    Raises:
        NotImplementedError: `process_sets` is given.
        ValueError: `comm` does not have all ranks.
    """
    if sets_of(process_sets):
        raise NotImplementedError(
            "[smdp] hvd.init(process_sets=...) is not supported for TensorFlow: after init(), pass"
            " process_set=smdp.world().split(color) to the calls."
        )
    smdp.init()
    check_comm(comm, smdp.size())


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = sdp.Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = sdp.Average,
    **options: Any,
) -> Any:
    """Makes an optimizer of tf.compat.v1 or Keras 3 average gradients over all ranks.

    The arguments after `op` are passed by name.

    Raises:
        ValueError: The optimizer is of tf.compat.v1 and is distributed already, or does not support one of
            the options.
    """
    passes = backward_passes_per_step
    return graph.distribute(
        optimizer, compression, sparse_as_dense, op, backward_passes_per_step=passes, **options
    )


def rank_op(name: str | None = None) -> Any:
    """Returns the rank as a tensor."""
    return tf.constant(smdp.rank())


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks as a tensor.

    Raises:
        NotImplementedError: `process_set_id` is not 0.
    """
    if process_set_id:
        raise NotImplementedError(
            f"[smdp] size_op({process_set_id}): process sets have no ids for TensorFlow. Use the size"
            " attribute of the smdp.Group instead."
        )
    return tf.constant(smdp.size())


def barrier(process_set: Any = None, name: str | None = None) -> Any:  # type: ignore[no-redef]
    """Waits until all ranks have called it."""
    return sdp.barrier(process_set=process_set)


def local_rank_op(name: str | None = None) -> Any:
    """Returns the rank within its host as a tensor."""
    return tf.constant(smdp.local_rank())


def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host as a tensor."""
    return tf.constant(smdp.local_size())


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
) -> list[Any]:
    """Gathers several tensors from all ranks; see allgather()."""
    return [allgather(tensor, name, process_set=process_set) for tensor in tensors]


def grouped_reducescatter(tensors: Sequence[Any], *arguments: Any, **options: Any) -> list[Any]:
    """Reduces and scatters several tensors; see reducescatter() for the arguments."""
    return [reducescatter(tensor, *arguments, **options) for tensor in tensors]


def cross_size() -> int:
    """Returns the number of hosts."""
    return len(smdp.world().hosts)


def cross_rank() -> int:
    """Returns the index of this host."""
    own = smdp.rank()
    return next(index for index, ranks in enumerate(smdp.world().hosts) if own in ranks)


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of ranks."""
    return len({len(ranks) for ranks in smdp.world().hosts}) == 1


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: Any = None
) -> Any:
    """Sets every variable to the root's value and returns the values as tensors."""
    done = broadcast_variables(variables, root_rank, process_set)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(variable) for variable in variables]


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Callable[[Any], Any]:
    """Returns broadcast_object() with all arguments set but the object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def join(device: int = -1) -> Any:
    """Waits until all ranks have called it, and returns the last rank.

    All ranks must have run the same number of batches. If another rank has more, it waits for this rank,
    and both fail with a timeout.

    Args:
        device: Not used.
    """
    done = barrier()
    with tf.control_dependencies([] if done is None else [done]):
        return tf.constant(smdp.size() - 1)


def __getattr__(name: str) -> Any:
    if name == "global_process_set" and smdp.is_initialized():
        return smdp.world()
    no_attribute("horovod.tensorflow", name)
