"""Values of a stage that every rank needs because host code reads them or the program returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.program_control import ProgramControl
from smdp.torch.pipelining.engine.same_program import SameProgram
from smdp.torch.pipelining.ghosts.descriptions import described, drawn, packed, unpacked
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.late_results import expect, offer
from smdp.torch.pipelining.transfers.transfers import dense_strides, laid_out, room_for

_MOST_READS = 1 << 12
# Seconds. Applies to host reads that are not in the plan; ranks that agree on one are never this far apart.
_LONGEST_DETOUR = 60.0


class HostReads:
    """The host reads of one microbatch, in the order in which its program asks for them.

    Args:
        step: The state shared by the microbatches of the step.
        index: Index of the microbatch.
        control: Suspends the program until an answer has arrived.

    Attributes:
        same: Compares the program with those of other ranks while it is recorded, when nothing suspends.
            None afterwards.
    """

    def __init__(self, step: Step, index: int, control: ProgramControl) -> None:
        self.same: SameProgram | None = None
        self._step = step
        self._index = index
        self._control = control
        self._fetched: dict[int, Tensor] = {}
        self._count = 0

    def fetch(self, value: Value, own: Callable[[], Tensor], *, later: bool) -> Tensor:
        """Returns the contents of a value on every rank: its owner sends them, the other ranks suspend.

        Args:
            value: A value computed by a stage.
            own: Returns its contents on the rank that owns the stage.
            later: Other ranks do not wait now; they fetch the contents when they are read.
        """
        known = self._fetched.get(value.index)
        if known is not None:
            return known
        step = self._step
        tag = self._next_tag()
        value.is_handed_round = True
        owner = step.rank_of[value.stage]
        what = f"{value.text()} of stage {value.stage}, microbatch {self._index}"
        if later and self.same is not None:
            step.plan.results.append(value)
        if step.is_mine(value.stage):
            found = own().detach()
            if later:
                offer(step.reads, found, value, step.others(), tag)
            else:
                data = laid_out(found, dense_strides(value.ghost))
                for rank in step.others():
                    step.reads.send(data, rank, tag, f"{value.text()} to the host")
        elif later:
            found = expect(step.reads, value, owner, tag, f"{what}, a result of step {step.number}")
        else:
            found = self._await(room_for(value, dense_strides(value.ghost)), owner, tag, what)
        self._fetched[value.index] = found
        return found

    def describe(self, unit: Any, stage: int, result: Any) -> Any:
        """Returns placeholders for a unit's result, whose owner sends shapes and dtypes to the others."""
        step = self._step
        tags = self._next_tag(), self._next_tag()
        what = f"the shapes that module {unit.name!r} returns"
        if step.is_mine(stage):
            description = described(result)
            data = packed(description)
            for rank in step.others():
                step.reads.send(torch.tensor([data.numel()], device="cpu"), rank, tags[0], what)
                step.reads.send(data, rank, tags[1], what)
        else:
            owner = step.rank_of[stage]
            length = self._await(torch.zeros(1, dtype=torch.int64, device="cpu"), owner, tags[0], what)
            data = self._await(
                torch.empty(int(length), dtype=torch.uint8, device="cpu"), owner, tags[1], what
            )
            description = unpacked(data)
        return drawn(description, step.ghosts)

    def wait(self, *, is_planned: bool) -> None:
        """Waits for the value that the program is suspended on, without doing anything else.

        Raises:
            RuntimeError: The read is not in the plan, and the owner of the value does not perform it.
            smdp.SmdpError: The owner is gone, or the deadline has passed.
        """
        awaited = self._control.read
        if awaited is None:
            return
        if not is_planned and not awaited.wait_for(_LONGEST_DETOUR):
            raise RuntimeError(
                f"[smdp] in microbatch {self._index} the code around the model reads a value on this rank's"
                " host that it did not read in the first microbatch, and the rank that owns the value has"
                f" not read it within {_LONGEST_DETOUR:.0f} s. All ranks must run the same program: read the"
                " value on every rank, and print it on one."
            )
        awaited.wait()

    def _await(self, tensor: Tensor, rank: int, tag: int, what: str) -> Tensor:
        arrival = self._step.reads.receive(tensor, rank, tag, what)
        if self.same is not None:
            self.same.check_answer(arrival, rank, what)
            return arrival.wait()
        return self._control.wait_for_read(arrival)

    def _next_tag(self) -> int:
        self._count += 1
        if self._count >= _MOST_READS:
            raise RuntimeError(
                f"[smdp] the host reads more than {_MOST_READS} values of one microbatch; read a whole tensor"
                " at once instead of its elements"
            )
        # A value that was sent or offered but never read must not answer a read of a later step.
        return (self._step.first_place + self._index) * _MOST_READS + self._count
