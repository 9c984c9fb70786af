"""Checks that all ranks of a pipeline have run the same program.

A rank that branches on its own rank number would wait for values that no rank sends.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import torch

from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import Arrival, Channel

# Host reads use tags between these.
_DIGEST = 0
_SLOWEST_LINK = 1e7  # bytes per second
_LENGTH = 1 << 60
_TEXT = _LENGTH + 1


class SameProgram:
    """Compares the recordings of the ranks.

    Args:
        reads: The channel for host reads.
        others: The other ranks of the pipeline.
    """

    def __init__(self, reads: Channel, others: Sequence[int]) -> None:
        self._reads = reads
        self._others = others
        self._arrivals: dict[int, Arrival] = {}

    def tell(self, plan: Plan) -> None:
        """Sends a digest of this rank's plan, which must be complete, to the other ranks."""
        self._digest = hashlib.sha256(_text(plan).encode()).digest()
        for rank in self._others:
            data = torch.frombuffer(bytearray(self._digest), dtype=torch.uint8)
            self._reads.send(data, rank, _DIGEST, "the end of the first microbatch")

    def check(self, plan: Plan) -> None:
        """Waits for the digests of the other ranks and compares them.

        Raises:
            RuntimeError: A digest differs; the message names the first differing operation.
        """
        differing = [
            rank for rank in self._others if self._digest_of(rank).wait().numpy().tobytes() != self._digest
        ]
        for rank in differing:
            raise RuntimeError(self._difference(plan, rank))

    def check_answer(self, awaited: Arrival, owner: int, what: str) -> None:
        """Waits for a value while the step is recorded.

        Raises:
            RuntimeError: The rank that owns the value has ended its program without sending it.
        """
        # Values that were sent before the end may arrive after it.
        grace = 0.5 + awaited.tensor.nbytes / _SLOWEST_LINK
        while not awaited.wait_for(0.05):
            if self._digest_of(owner).is_there() and not awaited.wait_for(grace):
                raise RuntimeError(
                    f"[smdp] this rank's program uses {what}, but the program of rank {owner}, which has it,"
                    " does not send it. All ranks of a pipeline must run the same program: look for a branch"
                    " that depends on the rank; read values on every rank, and print them on one."
                )

    def _digest_of(self, rank: int) -> Arrival:
        if rank not in self._arrivals:
            what = f"the end of rank {rank}'s first microbatch"
            room = torch.empty(32, dtype=torch.uint8, device="cpu")
            self._arrivals[rank] = self._reads.receive(room, rank, _DIGEST, what)
        return self._arrivals[rank]

    def _difference(self, plan: Plan, rank: int) -> str:
        own = _text(plan).encode()
        for tag, data in (
            (_LENGTH, torch.tensor([len(own)], device="cpu")),
            (_TEXT, torch.frombuffer(bytearray(own), dtype=torch.uint8)),
        ):
            self._reads.send(data, rank, tag, "the program")
        what = f"rank {rank}'s program"
        length = self._reads.receive(
            torch.zeros(1, dtype=torch.int64, device="cpu"), rank, _LENGTH, what
        ).wait()
        text = self._reads.receive(
            torch.empty(int(length), dtype=torch.uint8, device="cpu"), rank, _TEXT, what
        ).wait()
        lines = own.decode().splitlines(), text.numpy().tobytes().decode().splitlines()
        for place, (here, there) in enumerate(itertools.zip_longest(*lines, fillvalue="missing")):
            if here != there:
                return (
                    f"[smdp] the ranks of this pipeline run different programs: operation {place} is {here}"
                    f" on this rank and {there} on rank {rank}. The model, the batch and the code around the"
                    " model must be the same on all ranks; look for a branch that depends on the rank, or for"
                    " batches that differ."
                )
        return f"[smdp] the ranks of this pipeline run different programs; rank {rank} sends other values"


def _text(plan: Plan) -> str:
    lines = [
        f"{operation.name} ({operation.kind.name.lower()}) on stage {operation.stage}, returning "
        + (", ".join(map(_described, operation.values)) or "nothing")
        for operation in plan.operations
    ]
    lines += [f"a result, {_described(value)} of stage {value.stage}" for value in plan.results]
    return "\n".join(lines)


def _described(value: Value) -> str:
    return f"{value.text()} with a gradient" if value.needs_grad else value.text()
