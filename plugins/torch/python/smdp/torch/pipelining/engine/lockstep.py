"""Resumes host reads at fixed places of the table, so that ranks of one stage do the same in the same order.

Without this feature a microbatch continues as soon as its host read is answered. Two ranks that hold the same
stage may then run the code around the model before different units. If units and that code have their own
collectives, as under tensor parallelism, the two ranks would wait for each other forever.
"""

from __future__ import annotations

from smdp import pipeline as schedules
from smdp.torch.pipelining.engine.actions import COMPUTATIONS, Action, read_row
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan


class Lockstep(ActionHandler):
    """Performs RESUME, which lets the program of a microbatch run from one stage up to the next.

    The answers come from other ranks, whose programs must reach the same point. All ranks therefore resume a
    microbatch at the same moment of a simulated step: when the stage has ended its forward. By then a rank
    has done only what began earlier, and none of that depends on anything that begins later, so no cycle of
    waiting ranks can form.
    """

    kinds = frozenset({"RESUME"})

    def lower(self, row: list[Action], table: schedules.Schedule, rank: int, plan: Plan) -> list[Action]:
        """Returns the row with a RESUME before the first computation after a stage with host reads."""
        simulation = schedules.simulate(table, forward=1, backward_input=1, backward_weight=1)
        lowest = min((action.stage for action in row if action.kind == "F"), default=table.stages)
        # The code around the model follows the last stage, and may return values in any case.
        reading = {stage for stage in plan.reading_stages() if stage >= lowest} | {table.stages - 1}
        moments: list[tuple[float, int, int]] = []
        starts: dict[str, float] = {}
        for number, timeline in enumerate(simulation.timeline):
            for timed in timeline:
                for action in read_row([timed.action]):
                    if action.kind == "F" and action.stage in reading:
                        moments.append((timed.end, action.stage, action.microbatch))
                    if number == rank:
                        starts[action.text] = timed.start
        moments.sort(reverse=True)
        lowered: list[Action] = []
        for action in row:
            # Transfers do not wait, so those at the front need not wait for the answers.
            if action.kind in COMPUTATIONS:
                while moments and moments[-1][0] <= starts[action.text]:
                    lowered.append(_resume(*moments.pop()))
            lowered.append(action)
        return lowered + [_resume(*moment) for moment in reversed(moments)]

    def perform(self, action: Action, run: StepRun) -> None:
        """Resumes a microbatch and waits for the answers that it needs."""
        run.microbatches[action.microbatch].catch_up(action.stage)


def _resume(end: float, stage: int, microbatch: int) -> Action:
    return Action("RESUME", stage, microbatch, stage, f"{stage}RESUME{microbatch}")
