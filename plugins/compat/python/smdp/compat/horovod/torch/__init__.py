"""`horovod.torch`."""

from __future__ import annotations

from typing import Any

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
from smdp.compat.horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from smdp.compat.horovod.common.util import gpu_available as gpu_available
from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.torch.asynchronous import Adasum as Adasum
from smdp.compat.horovod.torch.asynchronous import Average as Average
from smdp.compat.horovod.torch.asynchronous import Max as Max
from smdp.compat.horovod.torch.asynchronous import Min as Min
from smdp.compat.horovod.torch.asynchronous import Product as Product
from smdp.compat.horovod.torch.asynchronous import Sum as Sum
from smdp.compat.horovod.torch.asynchronous import allgather_async as allgather_async
from smdp.compat.horovod.torch.asynchronous import allreduce_async as allreduce_async
from smdp.compat.horovod.torch.asynchronous import allreduce_async_ as allreduce_async_
from smdp.compat.horovod.torch.asynchronous import alltoall_async as alltoall_async
from smdp.compat.horovod.torch.asynchronous import broadcast_async as broadcast_async
from smdp.compat.horovod.torch.asynchronous import broadcast_async_ as broadcast_async_
from smdp.compat.horovod.torch.asynchronous import grouped_allgather_async as grouped_allgather_async
from smdp.compat.horovod.torch.asynchronous import grouped_allreduce_async as grouped_allreduce_async
from smdp.compat.horovod.torch.asynchronous import grouped_allreduce_async_ as grouped_allreduce_async_
from smdp.compat.horovod.torch.asynchronous import grouped_reducescatter_async as grouped_reducescatter_async
from smdp.compat.horovod.torch.asynchronous import poll as poll
from smdp.compat.horovod.torch.asynchronous import reducescatter_async as reducescatter_async
from smdp.compat.horovod.torch.asynchronous import synchronize as synchronize
from smdp.compat.horovod.torch.collectives import allgather as allgather
from smdp.compat.horovod.torch.collectives import allreduce as allreduce
from smdp.compat.horovod.torch.collectives import allreduce_ as allreduce_
from smdp.compat.horovod.torch.collectives import alltoall as alltoall
from smdp.compat.horovod.torch.collectives import barrier as barrier
from smdp.compat.horovod.torch.collectives import broadcast as broadcast
from smdp.compat.horovod.torch.collectives import broadcast_ as broadcast_
from smdp.compat.horovod.torch.collectives import grouped_allgather as grouped_allgather
from smdp.compat.horovod.torch.collectives import grouped_allreduce as grouped_allreduce
from smdp.compat.horovod.torch.collectives import grouped_allreduce_ as grouped_allreduce_
from smdp.compat.horovod.torch.collectives import grouped_reducescatter as grouped_reducescatter
from smdp.compat.horovod.torch.collectives import join as join
from smdp.compat.horovod.torch.collectives import reducescatter as reducescatter
from smdp.compat.horovod.torch.compression import Compression as Compression
from smdp.compat.horovod.torch.functions import allgather_object as allgather_object
from smdp.compat.horovod.torch.functions import broadcast_object as broadcast_object
from smdp.compat.horovod.torch.functions import broadcast_object_fn as broadcast_object_fn
from smdp.compat.horovod.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from smdp.compat.horovod.torch.functions import broadcast_parameters as broadcast_parameters
from smdp.compat.horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from smdp.compat.horovod.torch.sparse import sparse_allreduce_async as sparse_allreduce_async
from smdp.compat.horovod.torch.world import ProcessSet as ProcessSet
from smdp.compat.horovod.torch.world import add_process_set as add_process_set
from smdp.compat.horovod.torch.world import cross_rank as cross_rank
from smdp.compat.horovod.torch.world import cross_size as cross_size
from smdp.compat.horovod.torch.world import global_process_set as global_process_set
from smdp.compat.horovod.torch.world import init as init
from smdp.compat.horovod.torch.world import is_homogeneous as is_homogeneous
from smdp.compat.horovod.torch.world import is_initialized as is_initialized
from smdp.compat.horovod.torch.world import local_rank as local_rank
from smdp.compat.horovod.torch.world import local_size as local_size
from smdp.compat.horovod.torch.world import rank as rank
from smdp.compat.horovod.torch.world import remove_process_set as remove_process_set
from smdp.compat.horovod.torch.world import shutdown as shutdown
from smdp.compat.horovod.torch.world import size as size
from smdp.torch import SyncBatchNorm as SyncBatchNorm


def __getattr__(name: str) -> Any:
    no_attribute("horovod.torch", name)
