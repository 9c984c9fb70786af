"""Follows a plan and checks that the program still matches it."""

from __future__ import annotations

from smdp.torch.pipelining.interpreter.plan import Kind, Operation, Plan
from smdp.torch.pipelining.interpreter.position import Position


class EndOfForward(BaseException):
    """Ends the model's forward on a rank that has no more work in it."""


class Replayer:
    """Compares the program with its plan, operation by operation.

    Args:
        position: The position of the microbatch, which advances with each operation.
        end: Number of operations after which this rank has no more work in the model's forward.
    """

    def __init__(self, position: Position, end: int) -> None:
        self._position = position
        self._end = end

    def next(self, function: object, kind: Kind, name: str) -> Operation | None:
        """Returns the planned operation at the current position.

        Args:
            function: The function that the program calls.
            kind: How it is executed.
            name: The function's name, for errors.

        Returns:
            The operation; None once the code around the model leaves the plan, and is recorded from here on.

        Raises:
            EndOfForward: This rank has no more work in the model.
            RuntimeError: The model's forward has left the plan.
        """
        position = self._position
        if position.is_in_model and position.place >= self._end:
            raise EndOfForward
        operations = position.plan.operations
        operation = operations[position.place] if position.place < len(operations) else None
        if operation is None or operation.kind is not kind or operation.function != function:
            if position.is_in_model:
                planned = "ended" if operation is None else f"ran {operation.name}"
                raise RuntimeError(
                    f"[smdp] the model's forward runs {name} where it {planned} in the first microbatch"
                    " with these shapes. Its control flow may depend on shapes and options, but not on values"
                    " of a microbatch, because the stages plan their transfers beforehand."
                )
            position.is_recording = position.is_detour = True
            position.plan = Plan(operations[: position.place], list(position.plan.values))
            return None
        position.place += 1
        return operation
