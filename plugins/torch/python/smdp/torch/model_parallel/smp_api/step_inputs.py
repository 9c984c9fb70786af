"""The arguments of a step are one for all ranks of a pipeline: where they differ, those of pp_rank 0 count.

SMP runs a step function on the first stage alone, so its scripts read data there, and pass empty tensors,
None or what a dummy loader gives elsewhere. Here every rank runs the function, on the same arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from smdp.torch.model_parallel.agreement import together
from smdp.torch.model_parallel.late_results import read
from smdp.torch.model_parallel.smp_api.input_digest import digest
from smdp.torch.model_parallel.smp_api.sent_inputs import broadcast

_log = logging.getLogger(__name__)

# Tells the ranks that one of them has come with arguments of another structure.
IsSame = Callable[[int], bool]


class StepInputs:
    """The arguments of one step function, from call to call.

    The first call compares the arguments of all ranks, contents included. Where they were the same, later
    calls compare structure and shapes, by a number in a message that every step sends anyway. Once they have
    differed, every call takes those of pp_rank 0.

    Args:
        name: Of the function.
        group: Ranks of the pipeline.
    """

    def __init__(self, name: str, group: Any) -> None:
        self._name = name
        self._group = group
        self._is_first_call = True
        self._differ = False

    def agreed(self, arguments: Mapping[Any, Any], is_same: IsSame) -> dict[Any, Any]:
        """Returns the arguments that all ranks of the pipeline go on with; all of them call it.

        Args:
            arguments: This rank's, by where they stand in the call.
            is_same: Returns whether all ranks gave it the same number below 2^62.
        """
        arguments = {place: read(value) for place, value in arguments.items()}
        structure = b"" if self._differ else digest(arguments, with_contents=False)
        is_alike = is_same(int.from_bytes(structure[:8], "big") >> 2)
        if self._differ:
            return broadcast(arguments, self._group)
        if is_alike and self._is_first_call:
            is_alike = len(set(together(lambda: digest(arguments, with_contents=True), self._group))) == 1
        self._is_first_call = False
        if is_alike:
            return arguments
        self._differ = True
        if dist.get_rank(self._group) == 0:
            _log.info(
                "[smdp] the ranks of a pipeline pass different arguments to %s; from now on pp_rank 0 sends"
                " its own to the others in every call",
                self._name,
            )
        return broadcast(arguments, self._group)
