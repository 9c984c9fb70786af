"""Parses the rows of a schedule into actions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ACTION = re.compile(r"(\d+)([A-Z_]+?)(\d+)?(?:>(\d+))?")
_PAIR = re.compile(r"\((\d+F\d+);(\d+[BI]\d+)\)OVERLAP_F_B")

COMPUTATIONS = ("F", "I", "W", "B")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a rank.

    Attributes:
        kind: F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD or REDUCE_TIED.
        stage: The virtual stage.
        microbatch: The microbatch, or -1. For REDUCE_TIED, the group of tied weights.
        other: The stage at the other end of a transfer.
        text: The action as written in the schedule.
    """

    kind: str
    stage: int
    microbatch: int
    other: int
    text: str


def read_row(row: list[str]) -> list[Action]:
    """Returns the actions of a row; an overlapped pair becomes its forward followed by its backward."""
    actions: list[Action] = []
    for text in row:
        pair = _PAIR.fullmatch(text)
        for part in pair.groups() if pair else (text,):
            actions.append(_read(part))
    return actions


def most_in_flight(row: list[str]) -> int:
    """Returns the most forwards in a row whose backward, with that for weights, has not run yet."""
    count = most = 0
    for action in read_row(row):
        count += {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
        most = max(most, count)
    return most


def _read(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"[smdp] the engine cannot execute schedule action {text!r}")
    stage, kind, microbatch, other = match.groups()
    neighbor = {"SEND_F": 1, "RECV_B": 1, "RECV_F": -1, "SEND_B": -1}.get(kind, 0)
    return Action(
        kind,
        int(stage),
        -1 if microbatch is None else int(microbatch),
        int(other) if other is not None else int(stage) + neighbor,
        text,
    )
