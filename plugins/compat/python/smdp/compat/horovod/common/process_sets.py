"""`horovod.common.process_sets`, for PyTorch."""

from __future__ import annotations

import smdp.torch  # noqa: F401 - raises with the reason where there is no torch
from smdp.compat.horovod.torch.world import ProcessSet as ProcessSet
from smdp.compat.horovod.torch.world import add_process_set as add_process_set
from smdp.compat.horovod.torch.world import get_process_set_ids_and_ranks as get_process_set_ids_and_ranks
from smdp.compat.horovod.torch.world import global_process_set as global_process_set
from smdp.compat.horovod.torch.world import is_process_set_included as is_process_set_included
from smdp.compat.horovod.torch.world import remove_process_set as remove_process_set
