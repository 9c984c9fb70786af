"""Follows a plan: which operation it has where the program is."""

from __future__ import annotations

from smdp.torch.pipelining.interpreter.plan import Kind, Operation, Plan
from smdp.torch.pipelining.interpreter.position import Position


class EndOfForward(BaseException):
    """This rank has nothing left to do in the model's forward."""


class Replayer:
    """Compares the program with its plan, operation by operation.

    Args:
        position: Of the microbatch; goes on with each operation.
        end: Number of operations after which this rank has no part in the model's forward.
    """

    def __init__(self, position: Position, end: int) -> None:
        self._position = position
        self._end = end

    def next(self, function: object, kind: Kind, name: str) -> Operation | None:
        """Returns the operation that the plan has here.

        Args:
            function: What the program calls.
            kind: How it is executed.
            name: For errors.

        Returns:
            None once the code around the model goes another way, which is recorded from here on.

        Raises:
            EndOfForward: This rank has no part in what follows in the model.
            RuntimeError: The model's forward goes another way.
        """
        position = self._position
        if position.is_in_model and position.place >= self._end:
            raise EndOfForward
        operations = position.plan.operations
        operation = operations[position.place] if position.place < len(operations) else None
        if operation is None or operation.kind is not kind or operation.function != function:
            if position.is_in_model:
                planned = "its end" if operation is None else operation.name
                raise RuntimeError(
                    f"[smdp] the model's forward does {name} where it did {planned} in the first microbatch"
                    " of these shapes. Its path may depend on shapes and options, not on a microbatch's"
                    " values: the stages agree on transfers beforehand."
                )
            position.is_recording = position.is_detour = True
            position.plan = Plan(operations[: position.place], list(position.plan.values))
            return None
        position.place += 1
        return operation
