"""Makes all ranks of a pipeline run a step with the same arguments: those of pp_rank 0 if they differ.

SMP runs a step function only on the first stage. Its scripts therefore read data there, and pass empty
tensors, None or a dummy loader's output on other ranks. smdp runs the function on every rank, with the same
arguments.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch.distributed as dist

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.modules.input_digest import digest
from smdp.torch.model_parallel.modules.sent_inputs import broadcast
from smdp.torch.pipelining.transfers.late_results import read

_log = logging.getLogger(__name__)

# Returns whether all ranks passed the same number, which must be below 2^62.
IsSame = Callable[[int], bool]
_FAILED = 2**62 - 1


class StepInputs:
    """The arguments of one step function, over its calls.

    The first call compares the arguments of all ranks, including contents. If they are equal, later calls
    compare structure and shapes, by a number in a message that every step sends in any case. Once they have
    differed, every call uses the arguments of pp_rank 0.

    Args:
        name: Name of the function.
        mesh: The ranks and groups of the job.
    """

    def __init__(self, name: str, mesh: ParallelMesh) -> None:
        self._name = name
        self._mesh = mesh
        self._is_first_call = True
        self._differ = False
        self._own: Set[Any] = frozenset()

    def agreed(self, given: Callable[[], Mapping[Any, Any]], is_same: IsSame) -> dict[Any, Any]:
        """Returns the arguments that all ranks of the pipeline use. All of them must call this.

        Args:
            given: Returns this rank's arguments, by their place in the call.
            is_same: Returns whether all ranks passed the same number.

        Raises:
            Exception: `given` raised it on this rank.
            RuntimeError: Another rank has failed.
            ValueError: This rank lacks an argument that is not sent.
        """
        arguments: dict[Any, Any] = {}
        failure: Exception | None = None
        try:
            arguments = {place: read(value) for place, value in given().items()}
            number = self._number(arguments)
        except Exception as error:  # noqa: BLE001 - raised after the other ranks know of it
            failure, number = error, _FAILED
        is_alike = is_same(number)
        if not is_alike:
            on_every_rank(functools.partial(_raise, failure), self._group)
        _raise(failure)
        if self._differ:
            return self._sent(arguments, is_alike)
        if is_alike and self._is_first_call:
            is_alike = (
                len(set(on_every_rank(lambda: digest(arguments, with_contents=True), self._group))) == 1
            )
        self._is_first_call = False
        if is_alike:
            return arguments
        self._differ = True
        if dist.get_rank(self._group) == 0:
            _log.info(
                "[smdp] the ranks of a pipeline pass different arguments to %s; from now on, every call"
                " uses the arguments of pp_rank 0, which it sends to the other ranks",
                self._name,
            )
        return self._sent(arguments, is_alike)

    @property
    def _group(self) -> dist.ProcessGroup:
        return self._mesh.group("pp")

    def _number(self, arguments: Mapping[Any, Any]) -> int:
        """Returns a number that is equal on all ranks if a call needs no additional messages."""
        if self._differ:
            return int(not self._own <= arguments.keys())
        return int.from_bytes(digest(arguments, with_contents=False)[:8], "big") >> 2

    def _sent(self, arguments: Mapping[Any, Any], has_own: bool) -> dict[Any, Any]:
        """Returns the first rank's arguments.

        Args:
            arguments: This rank's arguments.
            has_own: Whether all ranks have the arguments that were not sent in the last call.
        """
        found, own = broadcast(arguments, self._group)
        if not (has_own and own <= self._own):
            on_every_rank(functools.partial(self._check_own, own - found.keys()), self._group)
            self._own = own
        return found

    def _check_own(self, missing: Set[Any]) -> None:
        if missing:
            name, key = min(missing, key=str)
            shown = name if key is None else f"{name}[{key!r}]"
            raise ValueError(
                f"[smdp] {self._name} got no argument {shown} on pp_rank {dist.get_rank(self._group)}, but"
                " pp_rank 0 passes an object there that is not sent to the other ranks, such as a model or"
                " an argparse.Namespace. Pass this argument on every rank."
            )


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise failure
