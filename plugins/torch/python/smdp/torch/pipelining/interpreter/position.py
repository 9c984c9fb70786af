"""Where one microbatch is in the program."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from smdp.torch.pipelining.interpreter.plan import ModelCall, Plan
from smdp.torch.pipelining.units.unit_call import Unit


@dataclass(slots=True)
class Position:
    """What the parts of an interpreter share.

    Attributes:
        plan: Recorded or followed; a plan of its own once the microbatch has left the one of the step.
        is_recording: The plan grows.
        stage: Virtual stage that the program has come to; it never goes back.
        place: Number of operations so far.
        is_in_model: Within the model's forward, not in the code around it.
        is_detour: The code around the model goes another way than the plan.
        last_unit: Name of the last unit, with the number of its call.
        since_unit: Operations since then.
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
        """Begins with the model's forward."""
        self.is_in_model = True

    def leave_model(self, call: ModelCall | None) -> ModelCall:
        """Goes on with the code around the model, also where its forward was not followed to its end.

        Args:
            call: As recorded; None while recording.
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
