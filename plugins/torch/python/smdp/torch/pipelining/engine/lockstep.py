"""Host reads at fixed places of the table, so that equal ranks do the same things in the same order.

Without this feature a microbatch goes on as soon as its host read has been answered. Two ranks that hold the
same stage may then run the code around the model before different units. Where units and that code have
collectives of their own, as under tensor parallelism, such ranks would wait for each other forever.
"""

from __future__ import annotations

from smdp import pipeline as schedules
from smdp.torch.pipelining.engine.actions import COMPUTATIONS, Action, read_row
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan


class Lockstep(ActionHandler):
    """Performs RESUME: lets the program of a microbatch do all that follows a stage, up to the next stage.

    The answers come from other ranks, whose programs must get there as well. So all ranks resume a microbatch
    at one moment of a simulated step, when the stage has ended its forward. A rank has then done only what
    began before that moment, and none of it needs anything that begins later: no rank waits in a circle.
    """

    kinds = frozenset({"RESUME"})

    def lower(self, row: list[Action], table: schedules.Schedule, rank: int, plan: Plan) -> list[Action]:
        """Puts a RESUME before the first computation that begins after a stage whose program reads values."""
        simulation = schedules.simulate(table, forward=1, backward_input=1, backward_weight=1)
        lowest = min((action.stage for action in row if action.kind == "F"), default=table.stages)
        # What follows the last stage is the code around the model, which may return values in any case.
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
            # Transfers wait for nothing: those that come first need not wait for the answers.
            if action.kind in COMPUTATIONS:
                while moments and moments[-1][0] <= starts[action.text]:
                    lowered.append(_resume(*moments.pop()))
            lowered.append(action)
        return lowered + [_resume(*moment) for moment in reversed(moments)]

    def perform(self, action: Action, run: StepRun) -> None:
        """Resumes a microbatch, and waits for the answers that it needs."""
        run.microbatches[action.microbatch].catch_up(action.stage)


def _resume(end: float, stage: int, microbatch: int) -> Action:
    return Action("RESUME", stage, microbatch, stage, f"{stage}RESUME{microbatch}")
