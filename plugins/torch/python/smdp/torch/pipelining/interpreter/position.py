"""The position of a microbatch in its program."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from smdp.torch.pipelining.interpreter.plan import ModelCall, Plan
from smdp.torch.pipelining.units.unit_call import Unit


@dataclass(slots=True)
class Position:
    """State that the parts of an interpreter share.

    Attributes:
        plan: The plan that is recorded or followed. A microbatch that leaves the step's plan gets its own.
        is_recording: Whether operations are added to the plan.
        stage: The virtual stage that the program has reached; it never decreases.
        place: Number of operations so far.
        is_in_model: Whether the program is in the model's forward instead of the code around it.
        is_detour: Whether the code around the model has left the plan.
        last_unit: Name of the last unit, with the number of its call.
        since_unit: Number of operations since then.
    """

    plan: Plan
    is_recording: bool
    stage: int = 0
    place: int = 0
    is_in_model: bool = False
    is_detour: bool = False
    last_unit: str = ""
    since_unit: int = 0

    def enter_model(self) -> None:
        """Marks the beginning of the model's forward."""
        self.is_in_model = True

    def leave_model(self, call: ModelCall | None) -> ModelCall:
        """Marks the end of the model's forward, even if this rank did not follow it to its end.

        Args:
            call: The call as recorded; None while recording.
        """
        self.is_in_model = False
        if call is None:
            return ModelCall(None, self.place, (self.stage, self.last_unit, self.since_unit))
        self.place = call.end
        self.stage, self.last_unit, self.since_unit = call.at
        return call

    def foreign_units(self, own: Collection[int]) -> list[Unit]:
        """Returns the units of other ranks that have run."""
        found = {
            operation.function: None
            for operation in self.plan.operations
            if isinstance(operation.function, Unit) and operation.stage not in own
        }
        return list(found)
