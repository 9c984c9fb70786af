"""The wording of messages: several APIs split models, and a message names the one that the user called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Phrases of messages that depend on the API.

    Attributes:
        split: The call that splits the model.
        compiled: How to compile the model.
        traced: How to make the split follow the order in which modules run.
        step: How to run the split model.
        backward: The loss whose backward the schedule runs.
    """

    split: str
    compiled: str
    traced: str
    step: str
    backward: str


PIPELINE = Wording(
    split="pipeline()",
    compiled="use compile=True to compile its modules",
    traced="Pass example_inputs to pipeline()",
    step="use train_step(batch, loss_fn), eval_step(batch, loss_fn) or run_step(program, microbatches)",
    backward="the loss that train_step()'s loss_fn returns, or that the split model's backward() gets",
)
