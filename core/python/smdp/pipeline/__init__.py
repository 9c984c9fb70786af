"""Generates, verifies, simulates and draws pipeline schedules, without a framework or a device.

import smdp.pipeline
schedule = smdp.pipeline.generate("1f1b", stages=4, microbatches=8)
smdp.pipeline.verify(schedule)
print(smdp.pipeline.simulate(schedule, forward=1, backward_input=1, backward_weight=1).bubble)
print(schedule.draw())
"""

from __future__ import annotations

from ._errors import AlternationError as AlternationError
from ._errors import CollectiveOrderError as CollectiveOrderError
from ._errors import CompletenessError as CompletenessError
from ._errors import CycleError as CycleError
from ._errors import DeadlockError as DeadlockError
from ._errors import EmptyStageError as EmptyStageError
from ._errors import LocalOrderError as LocalOrderError
from ._errors import MatchingError as MatchingError
from ._errors import MemoryCapError as MemoryCapError
from ._errors import PlacementError as PlacementError
from ._errors import ScheduleError as ScheduleError
from ._generate import SCHEDULES as SCHEDULES
from ._generate import ScheduleInfo as ScheduleInfo
from ._generate import generate as generate
from ._generate import schedule_info as schedule_info
from ._generate import usual_virtual_stages as usual_virtual_stages
from ._schedule import Schedule as Schedule
from ._simulate import Link as Link
from ._simulate import Simulation as Simulation
from ._simulate import TimedAction as TimedAction
from ._simulate import lower_bounds as lower_bounds
from ._simulate import simulate as simulate
from ._verify import verify as verify

__all__ = [
    "SCHEDULES",
    "AlternationError",
    "CollectiveOrderError",
    "CompletenessError",
    "CycleError",
    "DeadlockError",
    "EmptyStageError",
    "Link",
    "LocalOrderError",
    "MatchingError",
    "MemoryCapError",
    "PlacementError",
    "Schedule",
    "ScheduleError",
    "ScheduleInfo",
    "Simulation",
    "TimedAction",
    "generate",
    "lower_bounds",
    "schedule_info",
    "simulate",
    "usual_virtual_stages",
    "verify",
]
